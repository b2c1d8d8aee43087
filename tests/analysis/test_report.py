"""The report: complete, self-contained, escaped, and working in a browser."""

import json
import re
import shutil
import subprocess
import sys
import zlib
from html import unescape
from html.parser import HTMLParser
from importlib.util import find_spec
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib.image import imread

import analysis
from analysis import report
from analysis.aggregate import settings
from analysis.figures import all_figures
from analysis.figures.single_trial import confusion_matrix
from analysis.report import write as report_write
from analysis.streams import stream_finder
from gd_ray.data.pixels import Statistics
from gd_ray.errors import Unreachable, UserError
from gd_ray.heartbeat import progress_file
from gd_ray.methods import Method
from gd_ray.paper import TABLES
from gd_ray.spec import TrialSpec
from gd_ray.store import read_selections, write_class_names, write_failure
from gd_ray.wild.manifest import Manifest, Shard
from gd_ray.wild.stream import WildStream, image_column
from tests.helpers.made import NO_STORAGE, made_spec, select, write_made
from trials.claim import run_heartbeat
from trials.cli import main

NASTY = Method(name="<i>x</i>", title='<img src=x onerror="alert(1)">', previous="local")
AXE = find_spec("axe_core_python")
BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


def write_stream(folder, groups=(60, 60, 80)):
    """A prepared stream of one shard in several row groups."""
    folder.mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (sum(groups), 32, 32, 3), np.uint8)
    starts = np.cumsum([0, *groups])
    parts = [images[a:b] for a, b in pairwise(starts)]
    with pq.ParquetWriter(folder / "0.parquet", pa.schema([("image", pa.binary(3072))])) as writer:
        for part in parts:
            writer.write_table(pa.table({"image": image_column(part)}))
    crcs = tuple(zlib.crc32(part.data) for part in parts)
    shard = Shard("0.parquet", len(images), (folder / "0.parquet").stat().st_size, groups, crcs)
    one = (0.5, 0.5, 0.5)
    manifest = Manifest(32, len(images), (shard,), "made", 0, Statistics(one, one), 0, {}, 0, ())
    (folder / "manifest.json").write_text(manifest.to_json())


def right(level, seed):
    return lambda s, r: 90 - 4 * (s - r) + level + seed if s > r else 90


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three seeds of every method at two task sizes, a sweep, distances, a stream, a running and a failed trial."""
    root = tmp_path_factory.mktemp("report")
    results, storage = str(root / "results"), str(root / "storage")
    write_stream(Path(storage, "streams", "glyphs-200"))
    base = {"dataset": "glyphs", "num_classes": 8, "stream": "glyphs:200"}
    for seed in range(3):
        for level, method in enumerate([*TABLES[1], NASTY]):
            for size in (2, 4):
                spec = made_spec(method, seed, **base, task_size=size)
                write_made(results, "table1", spec, right(level - 10, seed))
        for ratio in (0.0, 0.5, 1.0):
            write_made(results, "ood", made_spec("gd+ext", seed, **base, ood_ratio=ratio), right(-3, seed))
        for distance in (1, 2, 3):
            spec = made_spec("gd+ext", seed, **{**base, "stream": f"imagenet2011-distance-{distance}"})
            write_made(results, "distance", spec, right(-distance, seed))
    running, failed = made_spec("gd", 7, **base), made_spec("gd", 8, **base)
    write_made(results, "table1", running, right(0, 0), stages=2, storage=storage)
    select(results, "table1", [running, failed], storage=storage)
    write_failure(results, failed.trial_id, "ValueError: <b>bad</b>", "error.txt")
    write_class_names(results, "glyphs", ["<u>A</u>", *"BCDEFGH"])
    return Path(results)


@pytest.fixture(scope="module")
def made(folder):
    path, results = report.write_report(str(folder))
    return path.read_text(), results


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


def test_the_page_has_every_part_and_closes_every_tag(made):
    text, _ = made
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


def test_nothing_comes_from_outside(made):
    text, _ = made
    without_pictures = re.sub(r"data:image/[^\"]*", "", text)
    assert "default-src 'none'" in text
    assert not re.findall(r"(?:src|href)=\"(?!#|\"|data:)", without_pictures)
    assert "http://" not in without_pictures
    assert "https://" not in without_pictures


def test_names_with_markup_are_shown_and_not_obeyed(made):
    text, _ = made
    assert "<img src=x" not in text
    assert "&lt;img src=x onerror=&#34;alert(1)&#34;&gt;" in text
    assert "ValueError: &lt;b&gt;bad&lt;/b&gt;" in text
    assert "<b>bad" not in text


def test_the_page_begins_with_what_was_found(made):
    text, results = made
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


def test_columns_of_text_are_aligned_as_text(made):
    trials = made[0][made[0].index('<h2 id="trials">') :]
    header = trials[: trials.index("</thead>")]
    assert header.count("text") == 5, header  # trial, method, data, stream, state
    assert '<td class="text">finished</td>' in trials


def test_what_is_unfinished_or_failed_is_told(made):
    text, _ = made
    assert "1 trial stopped; run the same command to resume" in text
    assert "Stages of 1 unfinished trial" in text
    assert "1 trial failed" in text
    assert "after stage 2" in text


def test_files_beside_the_report(folder, made):
    names = {path.name for path in (folder / "figures").iterdir()}
    wanted = (
        *("incremental-glyphs-2", "improvement-glyphs", "ood-ratio-glyphs", "distance-glyphs", "paired-glyphs"),
        *("accuracy-glyphs", "confusion-glyphs", "scores-glyphs", "samples-glyphs"),
    )
    assert names >= {f"{name}.{kind}" for name in wanted for kind in ("svg", "png")}
    assert imread(folder / "figures" / "improvement-glyphs.png").std() > 0.01
    assert {path.name for path in (folder / "tables").iterdir()} >= {
        f"table-{key}.{kind}" for key in ("1", "C.1", "own") for kind in ("csv", "md", "tex")
    }


def test_figures_show_the_numbers(folder):
    results = analysis.load(str(folder))
    (setting,) = settings(results)
    pictures = {shown.name: shown for shown in all_figures(results, setting, lambda *_: None)}
    assert "samples-glyphs" not in pictures  # no stream at hand
    axes = pictures["incremental-glyphs-2"].figure.axes[0]
    line = next(line for line in axes.lines if line.get_label() == "GD")
    curves = results.curves.merge(setting.trials[["trial_id"]], on="trial_id")
    rows = curves[(curves["method"] == "gd") & (curves["task_size"] == 2) & (curves["stage"] > 1)]
    expected = 100 * rows.groupby("classes_seen")["acc"].mean()
    np.testing.assert_allclose(line.get_ydata(), expected)
    np.testing.assert_array_equal(line.get_xdata(), [4, 6, 8])
    ratios = pictures["ood-ratio-glyphs"].figure.axes[0].lines[0].get_xdata()
    np.testing.assert_allclose(ratios.astype(float), [0.0, 0.5, 0.7, 1.0])
    distances = pictures["distance-glyphs"].figure.axes[0].lines[0]
    np.testing.assert_allclose(distances.get_xdata().astype(float), [1, 2, 3])
    assert np.all(np.diff(distances.get_ydata()) < 0)


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


def test_confusion_matrix_in_the_order_learned():
    import pandas as pd

    # Class 9 is learned first, then 4; in the end 4 of 10 images of class 9 are taken for class 4.
    rows = [(1, 9, 9, 10), (2, 9, 9, 6), (2, 9, 4, 4), (2, 4, 4, 10)]
    counts = pd.DataFrame(rows, columns=["stage", "true_class", "predicted_class", "count"])
    matrix, borders = confusion_matrix(counts)
    np.testing.assert_allclose(matrix, [[0.6, 0.4], [0, 1]])
    assert borders == [1, 2]


def test_streams_are_found_by_name(folder):
    results = analysis.load(str(folder))
    address = f"{next(path for path in results.storage if path != NO_STORAGE)}/streams/glyphs-200"
    name, other = "glyphs:200", "imagenet2011-distance-1"
    found = [stream_finder(results, {})(name, 200), stream_finder(results, {other: address})(other, 200)]
    assert all(isinstance(stream, WildStream) and stream.address == address for stream in found)
    assert stream_finder(results, {})("nowhere", 1) is None
    assert stream_finder(results, {})(name, 201) is None  # another stream of the same name
    with pytest.raises(UserError, match="--stream glyphs:200=nowhere is not a prepared stream"):
        stream_finder(results, {name: "nowhere"})(name, 1)
    with pytest.raises(UserError, match="has 200 images, but trials took image 200; give the stream"):
        stream_finder(results, {name: address})(name, 201)
    with pytest.raises(UserError, match="--stream wild=nowhere: no trial here has 'wild'; choose one of: glyphs:200, "):
        stream_finder(results, {"wild": "nowhere"})


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


def test_watching_ends_with_the_experiment(tmp_path):
    spec = made_spec("gd", 0)
    write_made(str(tmp_path), "x", spec, right(0, 0), stages=1)
    refreshes = []

    def write(refresh):
        refreshes.append(refresh)
        path, results = report.write_report(str(tmp_path), refresh=refresh)
        assert ('http-equiv="refresh"' in path.read_text()) == (refresh is not None)
        if len(refreshes) in (3, 5):  # between two pages, and at the last
            raise Unreachable("storage does not answer for a moment.")
        if len(refreshes) == 2:
            assert "No trial is finished yet" in path.read_text()
            write_made(str(tmp_path), "x", spec, right(0, 0))
        return results

    report.watch(write, seconds=1)
    assert refreshes == [1, 1, 1, 1, None, None]

    def unreachable(_):
        raise Unreachable("storage does not answer at all.")

    with pytest.raises(Unreachable):  # at once a wrong address or missing access
        report.watch(unreachable, seconds=1)


def gd_ray(*arguments):
    code = "from trials.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


def test_the_command(folder, tmp_path):
    done = gd_ray("report", str(folder), "--out", str(tmp_path / "new" / "page.html"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new" / "page.html").stat().st_size > 100_000
    assert "page.html" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nowhere",), "results 'nowhere' is not a folder"),
        ((".",), "results '.' holds no results"),
        ((".", "--every", "0"), "--every 0 must be at least 1 second"),
        ((".", "--stream", "x"), "--stream: expected name=folder, got 'x'"),
    ],
)
def test_mistakes_are_one_sentence(arguments, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gd-ray", "report", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    told = capsys.readouterr().err
    assert stopped.value.code == 2
    assert says in told
    assert told.count("\n") == 1


FRAME = """<!DOCTYPE html><title>no answer</title><script>onmessage = (event) => (document.title = event.data);</script>
<iframe src="report.html" style="border: 0; height: 844px; width: {width}px"></iframe>"""
PROBE = """
<script>
const table = document.querySelector("table.sortable");
const numbers = () => [...table.tBodies[0].rows].map((row) => Number(row.cells[1].dataset.value));
const button = table.querySelectorAll("thead button")[1];
button.click();
const up = numbers();
button.click();
const down = numbers();
const state = button.closest("th").getAttribute("aria-sort");
addEventListener("load", async () => {
  const outside = performance.getEntriesByType("resource").map((entry) => entry.name);
  const images = [...document.images].map((image) => [image.naturalWidth, image.clientWidth]);
  const page = [innerWidth, document.documentElement.scrollWidth, getComputedStyle(document.body).backgroundColor];
  document.querySelectorAll("details:nth-of-type(n + 4)").forEach((other) => other.remove()); // all alike
  const { violations } = await axe.run({ resultTypes: ["violations"] });
  const wrong = violations.map((v) => [v.impact, v.id, v.nodes[0].html.slice(0, 200)]);
  parent.postMessage(JSON.stringify({ up, down, state, images, outside, page, wrong }), "*");
});
</script>
"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
@pytest.mark.skipif(AXE is None, reason="axe-core is not installed: pip install axe-core-python")
@pytest.mark.parametrize(
    ("width", "scheme", "background"), [(1400, 1, "rgb(255, 255, 255)"), (390, 0, "rgb(20, 24, 29)")]
)
def test_in_a_browser(made, tmp_path, width, scheme, background):
    """On a wide light screen and on a dark phone; in a frame, because no window is as narrow as a phone."""
    axe = Path(AXE.origin).with_name("axe.min.js").read_text()
    (tmp_path / "report.html").write_text(made[0].replace("</body>", f"<script>{axe}</script>{PROBE}</body>"))
    (tmp_path / "frame.html").write_text(FRAME.format(width=width))
    flags = ["headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking"]
    flags += ["disable-component-update", "disable-sync", f"user-data-dir={tmp_path / 'profile'}", "hide-scrollbars"]
    flags += [f"blink-settings=preferredColorScheme={scheme}", "enable-logging=stderr", "virtual-time-budget=20000"]
    command = [BROWSER, *(f"--{flag}" for flag in flags), "--dump-dom", (tmp_path / "frame.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr, done.stderr  # also where the page asked for something its policy refuses
    shown = json.loads(unescape(re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL).group(1)))
    assert shown["up"] == sorted(shown["up"])
    assert len(set(shown["up"])) > 1
    assert shown["down"] == shown["up"][::-1]
    assert shown["state"] == "descending"
    assert [name for name in shown["outside"] if not name.startswith("data:")] == []
    assert shown["page"] == [width, width, background]  # nothing is wider than the screen
    assert shown["images"]
    assert all(drawn > natural / 2 > 25 for natural, drawn in shown["images"])  # panels wrap and stay readable
    assert [violation for violation in shown["wrong"] if violation[0] in ("serious", "critical")] == []


def command(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["gd-ray", *arguments])
    main()
    return capsys.readouterr().out


def test_report_and_status_agree_and_watching_a_stopped_run_ends(tmp_path, capsys, monkeypatch):
    results, storage = str(tmp_path / "results"), str(tmp_path / "storage")
    specs = [made_spec("gd+ext", 0, ood_ratio=ratio) for ratio in (0.0, 0.5, 1.0)]
    select(results, "sweep", specs, storage=storage)
    write_failure(results, specs[2].trial_id, "ValueError: no", "error.txt")
    (selection,) = read_selections(results)
    with (
        run_heartbeat(progress_file(storage, selection.digest), "run"),
        run_heartbeat(progress_file(storage, specs[0].trial_id), "run"),
    ):
        path, loaded = report.write_report(results)
        assert "Trials not finished yet: 1 running, 1 waiting." in loaded.notes
        assert "there are no tables and figures; nor any stage of one" in path.read_text()
        assert not report.is_over(loaded)
        status = command(capsys, monkeypatch, "status", results)
        assert status.splitlines()[1].split()[:6] == ["sweep", "0", "1", "1", "1", "0"]
        assert "GD+ext, seed 0, OOD ratio 0 " in status
        assert "failed: GD+ext, seed 0, OOD ratio 1: ValueError: no" in status
    write_made(results, "sweep", specs[0], right(0, 0), stages=1, storage=storage)
    said = command(capsys, monkeypatch, "report", results, "--watch", "--every", "1")
    assert "2 trials stopped; run the same command to resume after the last stage." in said
    assert said.splitlines()[-1] == "No trial runs any more: this was the last report."
    text = path.read_text()
    assert "the stages so far are below" in text
    assert f"<summary>GD+ext, seed 0, OOD ratio 0 ({specs[0].trial_id})</summary>" in text
    assert ">GD+ext, seed 0, OOD ratio 1</td>" in text  # which failed
    assert command(capsys, monkeypatch, "status", results).splitlines()[1].split()[:6] == ["sweep", *"00102"]
