"""What commands print; those that fail, are missing, or do not answer."""

import sys

from gd_ray.command_output import output_of


def python(code):
    return [sys.executable, "-I", "-c", code]


def test_what_a_command_prints():
    assert output_of(python("print(' one '); print('two')"), within_s=60) == "one \ntwo"
    assert output_of(python("print('one'); exit(1)"), within_s=60) is None
    assert output_of(["no-such-command"], within_s=60) is None


def test_a_command_without_an_answer_is_called_again(tmp_path):
    """Time also runs out where this process is suspended while it waits."""
    code = f"import pathlib, time; path = pathlib.Path({str(tmp_path / 'called')!r})\n"
    code += "if path.exists():\n    print('answer')\nelse:\n    path.touch(); time.sleep(600)"
    assert output_of(python(code), within_s=5) == "answer"
    assert output_of(python("import time; time.sleep(600)"), within_s=0.1) is None
