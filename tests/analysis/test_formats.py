"""Tables as LaTeX, Markdown, HTML and CSV."""

import io

import pandas as pd
import pytest

from analysis.formats import frame_grid, grids, interval, latex, mean_sd, number, to_csv, to_latex, to_markdown
from analysis.report.sections import TEMPLATES
from gd_ray.methods import Method
from tests.helpers.known_results import tables_of, write_known


def test_methods_of_your_own_with_markup_in_their_names(known_results):
    nasty = Method(name="<b>&_mine", title=r"<script>alert(1)</script> & $x_1$ [red]50%[/red] a|b", previous="local")
    for seed in range(3):
        write_known(known_results, nasty, seed, (50, 50))
    table = tables_of(known_results)["own"]
    (grid,) = grids(table)
    macros = TEMPLATES.get_template("macros.html.j2").module
    page, tex, markdown = str(macros.table(grid)), to_latex(grid), to_markdown(grid)
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; $x_1$" in page
    assert r"\textless{}script\textgreater{}alert(1)\textless{}/script\textgreater{} \& \$x\_1\$" in tex
    assert r"a\|b" in markdown
    assert r"\<script\>" in markdown


def test_latex_of_a_table(known_results):
    text = to_latex(grids(tables_of(known_results)["1"])[0])
    assert r"GD+ext & \textbf{71.0 $\pm$ 1.0} &" in text
    assert text.count(r"\\") == 1 + 4
    assert latex("\\{}^~") == r"\textbackslash{}\{\}\textasciicircum{}\textasciitilde{}"


def test_csv_has_full_precision(known_results):
    table = tables_of(known_results)["1"]
    frame = pd.read_csv(io.StringIO(to_csv(table)))
    assert frame["mean"].tolist() == pytest.approx(table.frame["mean"].tolist(), abs=1e-12)


def test_numbers_below_zero_have_a_minus_sign():
    assert (number(-0.34), number(-0.04), number(-0.04, "+.1f"), number(-12, "+.1f")) == (
        "−0.3",
        "0.0",
        "+0.0",
        "−12.0",
    )
    assert mean_sd(-0.34, 0.1) == "−0.3 ± 0.1"
    assert interval(-0.5, 0.25, ".0%") == "−50% to 25%"
    grid = frame_grid(pd.DataFrame({"name": ["a-b"], "x": [-0.5]}), "t")
    assert "| a-b | −0.5 |" in to_markdown(grid)
    assert "a-b & $-$0.5" in to_latex(grid)
