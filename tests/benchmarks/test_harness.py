"""Engines take turns, and a run that is cut short keeps its records."""

import json

from benchmarks import harness


def test_engines_take_turns_after_the_warm_up():
    called = []
    engines = {name: lambda name=name: called.append(name) for name in "ab"}
    found = harness.in_turn(engines, rounds=2, warm_up=1)
    assert "".join(called) == "ab" * 3
    assert [len(rounds) for rounds in found.values()] == [2, 2]
    assert harness.median(found["a"], "seconds") >= 0


def test_records_are_written_until_it_is_told_to_stop(tmp_path, capsys):
    def groups():
        yield [{"a": 1, "b": 2}]
        yield [{"error": "broke"}]
        raise KeyboardInterrupt

    file = tmp_path / "folder" / "result.json"
    assert not harness.collect({"head": 0}, groups(), file, hidden=["b"])
    written = json.loads(file.read_text())
    assert written["records"] == [{"a": 1, "b": 2}, {"error": "broke"}]
    assert (written["head"], written["complete"]) == (0, False)
    assert json.loads(capsys.readouterr().out.splitlines()[0]) == {"a": 1}


def test_a_budget_ends_a_run_between_groups(tmp_path):
    result = {}
    assert harness.collect(result, iter([[{"a": 1}, {"a": 2}], [{"a": 3}]]), None, budget=-1)
    assert [record["a"] for record in result["records"]] == [1, 2]
    assert not result["complete"]


def test_a_process_answers_requests_and_says_what_went_wrong():
    process = harness.EngineProcess("benchmarks.speed.engines", ["hf", "cpu", "1"], 1)
    answer = process.ask("open", ["transformer", "no such size", "32", 2, 1])
    assert "no such size" in answer["error"]
    process.process.kill()
    assert "ended with status -9" in process.ask("round")["error"]
    process.end()
    process.process.stdout.close()
