"""The report in a browser: it sorts, fits the screen, asks for nothing, and is accessible."""

import json
import re
import shutil
import subprocess
from html import unescape
from importlib.util import find_spec
from pathlib import Path

import pytest

AXE = find_spec("axe_core_python")
BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
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
def test_in_a_browser(made_report, tmp_path, width, scheme, background):
    """On a wide light screen and on a dark phone; in a frame, because no window is as narrow as a phone."""
    axe = Path(AXE.origin).with_name("axe.min.js").read_text()
    (tmp_path / "report.html").write_text(made_report[0].replace("</body>", f"<script>{axe}</script>{PROBE}</body>"))
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
