"""Tables of a Hive metastore, named as in Spark: partitioned Parquet, ORC, and text with CHAR(n) columns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import require_spark, spark_settings
from release.engines import SOURCE
from release.test_release import ROWS, read
from release.world import DATASET, SPEC, exact_counts, write_world

pytestmark = [pytest.mark.tier("deep"), pytest.mark.xdist_group("spark")]

MOST_SECONDS = 600
SITE = """<configuration>
<property><name>javax.jdo.option.ConnectionURL</name>
<value>jdbc:derby:;databaseName={folder}/metastore;create=true</value></property>
<property><name>datanucleus.schema.autoCreateAll</name><value>true</value></property>
<property><name>hive.metastore.schema.verification</name><value>false</value></property>
</configuration>"""
QUESTION = "SELECT country, COUNT(*) AS n FROM actions JOIN users ON actions.user_id = users.user_id GROUP BY country"
TABLES = """
from pyspark.sql import SparkSession

session = SparkSession.builder.master("local[2]").getOrCreate()
for name in ("urls", "users", "actions"):
    session.read.parquet(f"{name}.parquet").createOrReplaceTempView(name)
for statement in (
    "CREATE DATABASE web",
    "CREATE TABLE web.urls STORED AS ORC AS SELECT * FROM urls",
    "CREATE TABLE web.users (user_id BIGINT, country CHAR(9)) STORED AS TEXTFILE",
    "INSERT INTO web.users SELECT user_id, country FROM users",
    "CREATE TABLE web.actions (user_id BIGINT, url_id BIGINT, action VARCHAR(9), at TIMESTAMP_NTZ, code BIGINT)"
    " USING parquet PARTITIONED BY (url_id)",
    "INSERT INTO web.actions SELECT user_id, action, at, code, url_id FROM actions",
):
    session.sql(statement)
"""


def run(folder: Path, *command: str) -> str:
    """Run a program that finds the metastore by its configuration alone, and return what it prints."""
    environment = {**os.environ, "SPARK_CONF_DIR": str(folder / "conf"), "PYTHONPATH": ""}
    environment.pop("PYSPARK_PYTHON", None)  # Dither must find its own Python for the workers of this machine
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=MOST_SECONDS
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """The small world in a metastore of its own; the folder of its description."""
    require_spark()
    folder = tmp_path / "world"
    write_world(folder, SPEC, SOURCE.sub(r"source: {kind: spark, table: web.\1}", DATASET))
    (folder / "conf").mkdir()
    (folder / "conf" / "hive-site.xml").write_text(SITE.format(folder=folder))
    settings = {**spark_settings(folder), "spark.sql.catalogImplementation": "hive"}
    settings["spark.driver.extraJavaOptions"] += f" -Dderby.stream.error.file={folder}/derby.log"
    (folder / "conf" / "spark-defaults.conf").write_text("".join(f"{key} {text}\n" for key, text in settings.items()))
    run(folder, "-c", TABLES)
    return folder


def test_a_question_and_a_release_of_hive_tables(world: Path, tmp_path: Path) -> None:
    """Sigma 3 and 1 on 180 cells, sigma 3 on a count of 3,000: one is 12 sigma off with probability below 1e-30."""
    printed = run(world, "-m", "dither", "ask", "dataset.yml", QUESTION, "--rho", "0.1", "--unit", "action", "--json")
    found = {row["country"]: row["n"] for row in json.loads(printed)["rows"]}
    assert found.keys() == {"AT", "CH", "other"} and all(abs(n - 1000) < 60 for n in found.values())
    printed = run(world, "-m", "dither", "release", "release.yml", "--out", str(tmp_path / "out"), "--json")
    assert json.loads(printed)["new"]
    rows, truth = read(tmp_path / "out"), exact_counts(world)
    assert len(rows) == ROWS
    assert all(abs(row[3] - truth.get(row[:3], (0, 0))[0]) <= 36 for row in rows)
    assert all(abs(row[4] - truth.get(row[:3], (0, 0))[1]) <= 12 for row in rows)
