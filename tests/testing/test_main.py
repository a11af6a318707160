"""``python -m pymq.testing``: what it is asked for makes sense, or it fails."""

from __future__ import annotations

import pytest

from pymq.testing.__main__ import main


@pytest.mark.parametrize("seeds", ["5:5", "7:3", "x", "1:x", ""])
def test_no_seed_at_all_is_no_success(seeds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as status:
        main(["--seeds", seeds])
    assert status.value.code == 2
    assert "--seeds" in capsys.readouterr().err
