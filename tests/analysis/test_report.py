"""The report: complete, self-contained and escaped, and the files beside it."""

import re
from html import unescape
from html.parser import HTMLParser
from itertools import product

import pytest
from matplotlib.image import imread

from analysis import report
from analysis.report import write as report_write
from gd_ray.errors import UserError
from gd_ray.spec import TrialSpec
from tests.helpers.made import made_spec, right, select, write_made


class Reader(HTMLParser):
    """Collects tags and their attributes, and checks that they close in order."""

    def __init__(self):
        super().__init__()
        self.tags, self.open = [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_has_every_part_and_closes_every_tag(made_report):
    text, _ = made_report
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", text)
    for name in (
        "In short",
        "Results",
        "Figures",
        "Verdicts",
        "How sure",
        "What was run",
        "Trials",
        "Failures",
        "Versions and machines",
        "How to reproduce",
    ):
        assert name in headings
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [attributes["href"][1:] for tag, attributes in reader.tags if tag == "a"]
    assert set(targets) <= set(ids)
    drawings = [attributes for _, attributes in reader.tags if attributes.get("role") == "img"]
    assert len(drawings) == 9
    assert all(len(attributes["aria-label"]) > 40 for attributes in drawings)
    assert {attributes["id"] for tag, attributes in reader.tags if tag == "figure"} < set(targets)
    images = [attributes for tag, attributes in reader.tags if tag == "img"]
    assert all(attributes["src"].startswith("data:image/svg+xml;") for attributes in images)
    assert ("html", {"lang": "en"}) in reader.tags
    assert any(tag == "meta" and attributes.get("name") == "viewport" for tag, attributes in reader.tags)
    assert all("scope" in attributes for tag, attributes in reader.tags if tag == "th")


def test_nothing_comes_from_outside(made_report):
    text, _ = made_report
    without_pictures = re.sub(r"data:image/[^\"]*", "", text)
    assert "default-src 'none'" in text
    assert not re.findall(r"(?:src|href)=\"(?!#|\"|data:)", without_pictures)
    assert "http://" not in without_pictures
    assert "https://" not in without_pictures


def test_names_with_markup_are_shown_and_not_obeyed(made_report):
    text, _ = made_report
    assert "<img src=x" not in text
    assert "&lt;img src=x onerror=&#34;alert(1)&#34;&gt;" in text
    assert "ValueError: &lt;b&gt;bad&lt;/b&gt;" in text
    assert "<b>bad" not in text


def test_the_page_begins_with_what_was_found(made_report):
    text, results = made_report
    begin = unescape(text[: text.index('<h2 id="results">')])
    trials = results.trials[(results.trials["task_size"] == 2) & (results.trials["stream"] == "glyphs:200")]
    acc = 100 * trials[trials["ood_ratio"] == 0.7].groupby("method_title", observed=True)["acc"].mean()
    first, second = acc.sort_values().tail(2)[::-1].items()
    for title, mean in (first, second):
        assert f"{title} with {mean:.1f}%" in begin
    assert "(Glyphs, task size 2, mean over the 3 seeds that all have)" in begin
    change = acc["GD+ext"] - acc["GD"]
    assert f"GD with external data: ACC +{change:.1f} points (better on 3 of 3 seeds, 95% interval" in begin
    assert "Average forgetting: how far the accuracy on a task falls" in begin
    assert "†" not in text


def test_the_mark_of_collapsed_trials_is_explained_where_there_are_some(tmp_path):
    write_made(str(tmp_path), "x", made_spec("gd", 0), lambda stage, task: 0)
    text = report.write_report(str(tmp_path))[0].read_text()
    assert "<dt>†</dt><dd>Some trials collapsed: in the end they are no better than guessing" in text
    assert "† marks cells with collapsed trials" in text


def test_columns_of_text_are_aligned_as_text(made_report):
    trials = made_report[0][made_report[0].index('<h2 id="trials">') :]
    header = trials[: trials.index("</thead>")]
    assert header.count("text") == 5, header  # trial, method, data, stream, state
    assert '<td class="text">finished</td>' in trials


def test_what_is_unfinished_or_failed_is_told(made_report):
    text, _ = made_report
    assert "1 trial stopped; run the same command to resume" in text
    assert "Stages of 1 unfinished trial" in text
    assert "1 trial failed" in text
    assert "after stage 2" in text


def test_files_beside_the_report(report_folder, made_report):
    names = {path.name for path in (report_folder / "figures").iterdir()}
    wanted = (
        *("incremental-glyphs-2", "improvement-glyphs", "ood-ratio-glyphs", "distance-glyphs", "paired-glyphs"),
        *("accuracy-glyphs", "confusion-glyphs", "scores-glyphs", "samples-glyphs"),
    )
    assert names >= {f"{name}.{kind}" for name in wanted for kind in ("svg", "png")}
    assert imread(report_folder / "figures" / "improvement-glyphs.png").std() > 0.01
    assert {path.name for path in (report_folder / "tables").iterdir()} >= {
        f"table-{key}.{kind}" for key in ("1", "C.1", "own") for kind in ("csv", "md", "tex")
    }


def test_each_setting_is_named_in_figures_and_files(tmp_path):
    for batch_size in (128, 64):
        for method, seed in product(("gd", "baseline"), range(2)):
            spec = made_spec(method, seed, num_classes=6, batch_size=batch_size)
            write_made(str(tmp_path), "x", spec, right(0, seed))
    text = report.write_report(str(tmp_path))[0].read_text()
    sizes = [128, 64] if "Setting 1: num_classes 6, batch_size 128" in text else [64, 128]
    for k, size in enumerate(sizes, start=1):
        assert f"As classes are added: CIFAR-100, task size 2 (setting {k})" in text
        assert f"with and without external data, setting {k}: differences" in text
        files = {
            kind: (tmp_path / "tables" / f"setting{k}-table-1.{kind}").read_text() for kind in ("md", "tex", "csv")
        }
        assert f"batch\\_size {size}" in files["md"]
        assert f"% Settings: num_classes 6, batch_size {size}." in files["tex"]
        assert f"batch_size {size}" in files["csv"]
        notes = (tmp_path / "tables" / f"setting{k}-table-C.1.md").read_text()
        assert "With 2 seeds and 1 test of a kind or more no corrected p" in notes


def test_reports_in_one_folder_keep_out_of_each_others_way(tmp_path, monkeypatch):
    monkeypatch.setattr(report_write, "_figures", lambda *_: {})  # drawing takes seconds
    for name in ("one", "two"):
        for method in ("gd", "baseline"):
            write_made(str(tmp_path / name), "x", made_spec(method, 0), right(0, 0))
        report.write_report(str(tmp_path / name), str(tmp_path / f"{name}.html"))
    assert all((tmp_path / f"{name}-tables" / "table-1.md").exists() for name in ("one", "two"))
    with pytest.raises(UserError, match="is a folder; name the HTML file with --out"):
        report.write_report(str(tmp_path / "one"), str(tmp_path / "two"))


def test_how_to_reproduce_tells_what_was_typed(tmp_path):
    write_made(str(tmp_path), "mine", made_spec("gd", 0), right(0, 0))
    path, _ = report.write_report(str(tmp_path))
    assert f"gd-ray run mine --results {tmp_path}" in path.read_text()
    assert "The command lines of mine are not recorded" in path.read_text()
    for command in ("gd-ray run mine.yaml --set seed=0", "gd-ray run mine.yaml", "gd-ray run mine.yaml"):
        select(str(tmp_path), "mine", [made_spec("gd", 0)], command=command)
    path, results = report.write_report(str(tmp_path))
    assert results.commands == {"mine": ("gd-ray run mine.yaml --set seed=0", "gd-ray run mine.yaml")}
    assert "gd-ray run mine.yaml --set seed=0\n" in path.read_text()
    assert "not recorded" not in path.read_text()
    write_made(str(tmp_path), "older", made_spec("gd", 1), right(0, 0))
    text = report.write_report(str(tmp_path))[0].read_text()
    assert "The command lines of older are not recorded" in text
    assert f"gd-ray run mine.yaml\ngd-ray run older --results {tmp_path}\n" in text


def test_files_of_an_earlier_report_go_and_others_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(report_write, "_figures", lambda *_: {})  # drawing takes seconds
    for method in ("gd", "baseline"):
        write_made(str(tmp_path), "x", made_spec(method, 0), right(0, 0))
    report.write_report(str(tmp_path))
    (tmp_path / "tables" / "notes.md").write_text("mine")
    assert (tmp_path / "tables" / "table-1.md").exists()
    write_made(str(tmp_path), "x", made_spec("gd", 0, convention="released"), right(0, 0))
    report.write_report(str(tmp_path))
    names = {path.name for path in (tmp_path / "tables").iterdir()}
    assert {"notes.md", "setting1-table-1.md"} <= names
    assert "table-1.md" not in names


def test_both_conventions_have_verdicts(tmp_path, monkeypatch):
    monkeypatch.setattr(report_write, "_figures", lambda *_: {})  # drawing takes seconds
    for convention in ("paper", "released"):
        for method, seed in product(("gd", "baseline"), range(2)):
            spec = TrialSpec(method=method, seed=seed, task_size=20, convention=convention)
            write_made(str(tmp_path), "x", spec, right(0, seed))
    text = report.write_report(str(tmp_path))[0].read_text()
    verdicts = text.split("<span>Each cell against the paper")[1].split("</table>")[0]
    assert verdicts.count(">paper</td>") == 4
    assert verdicts.count(">released</td>") == 4


def test_samples_that_cannot_be_read_are_told(tmp_path):
    trial = write_made(str(tmp_path), "x", made_spec("gd+ext", 0), right(0, 0))
    file = tmp_path / "samples" / f"{trial}.parquet"
    file.write_bytes(b"PAR1")
    text = report.write_report(str(tmp_path))[0].read_text()
    assert f"1 file cannot be read and is left out: {file}" in text
