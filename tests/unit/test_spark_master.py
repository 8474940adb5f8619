"""Where Spark computes is said once, and what goes with no cluster is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import plain, spark_master
from penstock.errors import BadMasterError
from penstock.run.app_file import load

APP = "from penstock import App\napp = App('shop')\n"


@pytest.fixture(autouse=True)
def _said_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_MASTER", "PENSTOCK_CHECKPOINT", plain.VARIABLE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_without_a_word_this_machine_computes_with_all_its_cores() -> None:
    spark_master.choose(None)
    assert (spark_master.cluster(), spark_master.local_cores()) == (None, None)
    assert not spark_master.shares_checkpoint()


@pytest.mark.parametrize(("master", "cores"), [("local", 1), ("local[*]", None), ("local[3]", 3)])
def test_this_machine_may_be_named(master: str, cores: int | None) -> None:
    spark_master.choose(master)
    assert (spark_master.cluster(), spark_master.local_cores()) == (None, cores)
    assert plain.uses("nursery")


@pytest.mark.parametrize("master", ["spark://a:7077", "spark://a:7077,b:7077", "k8s://https://a:443", "yarn"])
def test_a_cluster_is_served_the_plain_way(master: str) -> None:
    spark_master.choose(master)
    assert spark_master.cluster() == master
    assert plain.off(plain.SPARK) == list(plain.SPARK)
    assert plain.uses("short_way")
    assert spark_master.shares_checkpoint()


@pytest.mark.parametrize("master", ["spark://a", "local[0]", "mesos://a:5050", "http://a:8080", "cluster"])
def test_anything_else_is_no_master(master: str) -> None:
    with pytest.raises(BadMasterError, match="is no master of Spark"):
        spark_master.choose(master)


def test_a_cluster_cannot_read_an_embedded_log(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    spark_master.choose("spark://a:7077")
    with pytest.raises(BadMasterError, match="a file of this machine") as caught:
        load(str(tmp_path / "app.py")).folder(None)
    assert "--log kafka://" in str(caught.value.hint)


def test_checkpoints_lie_where_all_machines_see_them_by_the_name_of_the_app(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    spark_master.choose(None, tmp_path / "shared")
    folder = load(str(tmp_path / "app.py")).folder(None, "kafka://a:9092", tmp_path / "shared")
    assert folder.checkpoints == tmp_path / "shared" / "shop"
    assert spark_master.shares_checkpoint()


def test_a_url_is_no_folder_for_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    with pytest.raises(BadMasterError, match="is a URL"):
        load(str(tmp_path / "app.py")).folder(None, "kafka://a:9092", Path("s3a://bucket/x"))
