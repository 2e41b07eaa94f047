"""Tests the tables of tools/bench_cpu, the file that keeps its results, and how it spends its time."""
import json
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools/bench"))
import cpu_report  # noqa: E402
import cpu_turns  # noqa: E402
import turns  # noqa: E402


def a_run(cpu="A", date="2026-01-01", mine=100.0):
    def t(ms):
        return {"median": ms, "fast_quartile": ms / 2, "steps": 9}

    return {"date": date, "cpu": cpu, "threads": 2, "versions": {"PyTorch": "1", "jax": "2"},
            "roofs": {"f32": 200, "bf16": 400, "amx": 0, "copy": 30, "ghz": 3.125},
            "rows": {"gpt": {"gflop": 10, "rounds": 3, "missing": {},
                             "ms": {"tapestry": t(mine), "tapestry bf16": t(50.0), "torch eager default": t(160.0),
                                    "jax": t(150.0), "torch eager default bf16": t(80.0)}},
                     "op_forward": {"gflop": None, "rounds": 5, "missing": {},
                                    "ms": {"tapestry": t(0.1), "torch eager default": t(1.0)}}}}


class Report(unittest.TestCase):
    def test_the_best_peer_in_f32_ignores_bf16_and_the_best_of_any_precision_does_not(self):
        ms = a_run()["rows"]["gpt"]["ms"]
        self.assertEqual(cpu_report.best_peer(ms, ["f32"]), "jax")
        self.assertEqual(cpu_report.best_peer(ms, ["f32", "bf16"]), "torch eager default bf16")
        self.assertIsNone(cpu_report.best_peer({"tapestry": ms["tapestry"]}, ["f32"]))

    def test_shares_are_of_the_roof_of_the_precision(self):
        # 10 GFLOP in 100 ms are 100 GFLOP/s, half of 200; the peer's 150 ms are a third. In bf16, 50 ms are half of 400.
        self.assertIn("| gpt | 100.000 / 50.000 | 150.000 / 75.000 (jax) | 1.50 / 1.50 | 50% | 33% |",
                      cpu_report.table(a_run(), False))
        self.assertIn("| gpt | 50.000 / 25.000 | 80.000 / 40.000 (torch eager default bf16) | 1.60 / 1.60 | 50% | 31% |",
                      cpu_report.table(a_run(), True))

    def test_a_work_without_flops_or_without_bf16_has_no_share(self):
        self.assertIn("| op_forward (us an operation) | 0.100 / 0.050 | 1.000 / 0.500 (torch eager default) | 10.00 / 10.00 |  |  |",
                      cpu_report.table(a_run(), False))
        self.assertNotIn("op_forward", cpu_report.table(a_run(), True))
        run = a_run()
        run["roofs"] = {}
        self.assertIn("| 1.60 / 1.60 |  |  |", cpu_report.table(run, True))

    def test_in_bf16_the_roof_is_that_of_the_fastest_unit_and_in_f32_that_of_f32(self):
        # 10 GFLOP in 50 ms are 200 GFLOP/s, and the peer's in 80 ms 125. vdpbf16ps at half of f32's rate is no roof.
        for bf16, amx, unit, mine, peer in ((400, 0, "AVX512_BF16 vdpbf16ps", 50, 31), (0, 0, "f32 FMA", 100, 62), (100, 0, "f32 FMA", 100, 62),
                                            (100, 1000, "AMX tdpbf16ps", 20, 12)):
            run = a_run()
            run["roofs"] |= {"bf16": bf16, "amx": amx}
            text = cpu_report.table(run, True)
            self.assertIn(f"| share of the roof ({unit}) |", text)
            self.assertIn(f"| 1.60 / 1.60 | {mine}% | {peer}% |", text)
            self.assertIn("| 1.50 / 1.50 | 50% | 33% |", cpu_report.table(run, False))
            self.assertNotIn("More than 100%", text)

    def test_a_share_above_the_roof_has_a_line_that_says_why(self):
        text = cpu_report.table(a_run(mine=40.0), False)  # 250 of 200 GFLOP/s
        self.assertIn("| 125% | 33% |", text)
        self.assertIn("\n\nMore than 100% (gpt): the roof was measured too low", text)
        self.assertNotIn("op_forward)", text.splitlines()[-1])
        run = a_run(mine=200.0)
        run["roofs"]["f32"] = 60  # 50 GFLOP/s stay below it, and the peer's 66.7 do not
        self.assertRegex(cpu_report.table(run, False), r"83% \| 111% \|\n(.*\n)+\nMore than 100% \(gpt\)")

    def test_roofs_have_their_units_and_absent_ones_say_so(self):
        self.assertTrue(cpu_report.heading(a_run()).endswith(
            "Roofs: f32 FMA: 200 GFLOP/s, AVX512_BF16 vdpbf16ps: 400 GFLOP/s, AMX tdpbf16ps: no AMX, "
            "30.0 GB/s read and written by a copy, 3.12 GHz (32.0 f32 operations a cycle and thread)."), cpu_report.heading(a_run()))
        run, old = a_run(), a_run("B")
        run["roofs"] |= {"bf16": 0, "amx": 2000.4}
        old["roofs"] = {"f32": 350, "bf16": 173, "copy": 20}  # as kept before AMX was measured
        self.assertIn("vdpbf16ps: no AVX512_BF16, AMX tdpbf16ps: 2000 GFLOP/s, ", cpu_report.heading(run))
        self.assertTrue(cpu_report.heading(old).endswith("AMX tdpbf16ps: not measured, 20.0 GB/s read and written by a copy."))
        self.assertEqual(cpu_report.side_by_side([run, old]).splitlines()[2:5],
                         ["| roof: f32 FMA | 200 GFLOP/s | 350 GFLOP/s |", "| roof: AVX512_BF16 vdpbf16ps | no AVX512_BF16 | 173 GFLOP/s |", "| roof: AMX tdpbf16ps | 2000 GFLOP/s | not measured |"])

    def test_all_variants_are_in_the_order_of_their_times(self):
        lines = cpu_report.all_variants(a_run()).splitlines()[2:7]
        self.assertEqual([line.split(" | ")[1] for line in lines],
                         ["tapestry bf16", "torch eager default bf16", "tapestry", "jax", "torch eager default"])

    def test_runs_of_other_processors_and_dates_are_kept_and_the_same_one_is_replaced(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "runs.json")
            for run in (a_run(), a_run("B"), a_run(date="2026-02-02"), a_run(mine=75.0)):
                runs = cpu_report.keep(run, path)
            self.assertEqual([(r["cpu"], r["date"]) for r in runs],
                             [("B", "2026-01-01"), ("A", "2026-02-02"), ("A", "2026-01-01")])
            with open(path) as f:
                self.assertEqual(json.load(f), runs)
        lines = cpu_report.side_by_side(runs).splitlines()
        self.assertEqual(lines[0], "| work | B, 2026-01-01 | A, 2026-02-02 | A, 2026-01-01 |")
        self.assertIn("| gpt | 100.000 ms, 1.50x | 100.000 ms, 1.50x | 75.000 ms, 2.00x |", lines)
        self.assertIn("| gpt bf16 | 50.000 ms, 1.60x | 50.000 ms, 1.60x | 50.000 ms, 1.60x |", lines)

    def test_a_later_run_replaces_the_rows_that_it_has_and_keeps_the_others(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "runs.json")
            first, again = a_run(), a_run(mine=80.0)
            del first["roofs"]["amx"]  # as kept before AMX was measured
            cpu_report.keep(first, path)
            del again["rows"]["op_forward"]
            again["roofs"] = {"f32": 210, "bf16": 390, "amx": 0, "copy": 30}
            runs = cpu_report.keep(again, path)
            self.assertEqual(len(runs), 1)
            self.assertEqual(list(runs[0]["rows"]), ["gpt", "op_forward"])
            self.assertEqual(runs[0]["rows"]["gpt"]["ms"]["tapestry"]["median"], 80.0)
            self.assertEqual(runs[0]["roofs"], {"f32": 210, "bf16": 400, "amx": 0, "copy": 30, "ghz": 3.125})
            again["roofs"] = {}  # as --resume with nothing left to measure
            self.assertEqual(cpu_report.keep(again, path)[0]["roofs"]["bf16"], 400)
            self.assertEqual(cpu_report.read_run(again, path), runs[0])
            other = a_run(date="2026-03-03")
            self.assertIs(cpu_report.read_run(other, path), other)
        self.assertIn("3 to 5 interleaved rounds", cpu_report.heading(runs[0]))

    def test_what_is_missing_of_a_row_is_said(self):
        row = {"rounds": 3, "missing": {"torch compiled default": "no time"}}
        self.assertEqual(cpu_report.missing(row, 5), ["torch compiled default (no time)", "2 of 5 rounds"])
        self.assertEqual(cpu_report.missing({"rounds": 5, "missing": {}}, 5), [])


class Turns(unittest.TestCase):
    def setUp(self):
        self.time, self.calls = 0.0, []

    def sides(self, **seconds):
        def side(name, ms):
            def run(repeats):
                self.calls.append(name)
                self.time += seconds[name] * repeats
                return [ms] * repeats
            return run
        return {name.replace("_", " "): side(name, 1e3 * seconds[name]) for name in seconds}

    def rounds(self, sides, rounds, deadline):
        return list(cpu_turns.take_turns(sides, 1, rounds, deadline, now=lambda: self.time, pause=lambda: None))

    def test_the_sides_alternate_after_a_warm_up(self):
        self.assertEqual(len(self.rounds(self.sides(tapestry=1, torch=1), 3, 1e9)), 3)
        self.assertEqual(self.calls, ["tapestry", "torch"] * 4)

    def test_a_round_that_would_end_too_late_does_not_begin_but_one_always_runs(self):
        self.assertEqual(len(self.rounds(self.sides(tapestry=1, torch=1), 9, 7.9)), 2)  # 2 s of warm-up, 2 s a round
        self.assertEqual(len(self.rounds(self.sides(tapestry=1, torch=1), 9, 0)), 1)

    def test_peers_that_cannot_win_are_left_out_after_two_rounds_and_tapestry_never_is(self):
        sides = self.sides(tapestry=9, torch=2, jax=3, torch_bf16=1, jax_bf16=1.3, tensorflow_bf16=1.5)
        times = self.rounds(sides, 5, 1e9)[-1]
        self.assertEqual({v: len(t) for v, t in times.items()},
                         {"tapestry": 5, "torch": 5, "jax": 2, "torch bf16": 5, "jax bf16": 5, "tensorflow bf16": 2})

    def test_threads_get_processors_of_different_cores_first(self):
        self.assertEqual(turns.one_per_core_first({3, 0, 1, 2}, lambda cpu: cpu // 2), [0, 2, 1, 3])
        self.assertEqual(turns.one_per_core_first({7, 4, 5, 6}, lambda cpu: cpu % 2), [4, 5, 6, 7])
        self.assertEqual(turns.one_per_core_first({0, 1}, lambda cpu: cpu), [0, 1])

    def test_the_time_that_a_work_does_not_use_is_left_for_the_others(self):
        budget = cpu_turns.Budget(1, 3, now=lambda: self.time)
        self.assertEqual(budget.begin_work(), (10, 20))
        self.time = 6
        self.assertEqual(budget.begin_work(), (6 + 13.5, 6 + 27))
        self.time = 58
        self.assertEqual(budget.begin_work(), (59, 60))
        self.assertFalse(budget.is_over())
        self.time = 60
        self.assertTrue(budget.is_over())
        self.assertEqual(cpu_turns.Budget(None, 2, now=lambda: self.time).begin_work(), (float("inf"), float("inf")))


if __name__ == "__main__":
    del sys.argv[1:]  # the build folder, which this test does not need
    unittest.main()
