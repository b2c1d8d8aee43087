"""What the README shows runs as it stands."""

import re
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_notebook_example(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(example, {})
    acc, fgt = (float(value) for value in capsys.readouterr().out.split())
    assert 0 < acc < 1
    assert -1 < fgt < 1
