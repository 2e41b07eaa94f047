"""Tests how tools/gpu_check compares values and times benchmarks. Fake programs give the answers.
usage: gpu_check_bench_test.py [BUILD_FOLDER]; without it, the tests that need a real bench_gpu_ops are skipped"""
import os
import sys
import time
import unittest
import unittest.mock

sys.dont_write_bytecode = True
from gpu_check_case import Case  # noqa: E402
import bench  # noqa: E402
import items  # noqa: E402
import process  # noqa: E402
import values  # noqa: E402
from report import PHASE  # noqa: E402

BUILD = None


def times(ours, peer, copy=None):
    found = {"ours": [ours] * 7, "peer": [peer] * 7}
    return {**found, "copy": [copy] * 7} if copy else found


class Talker:
    """A fake program that gives the listed answers in order, and repeats the last one."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def ask(self, _line, _limit):
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def close(self):
        pass


# A fake of both benchmark programs. Its answers depend only on the command. The test inserts the values of dweight for
# %s.
FAKE_PROGRAM = """
import sys
for line in sys.stdin:
    word = line.split()[0]
    if word == "time":
        print("0.5", flush=True)
    elif word == "prepare":
        print("ok", flush=True)
    else:
        print("ok dx: 1 2 3 | dweight: %s | dbias: 7", flush=True)
"""


class Values(Case):
    item = items.Item("layer_norm_backward f32 37 101", .9, 3)

    def verify(self, ours, peer, *one, limit=60):
        checked = self.check(limit=limit)
        checked.ours = checked.talk([self.program("ours", FAKE_PROGRAM % ours, f"#!{sys.executable}")])
        checked.peer = checked.talk([self.program("peer", FAKE_PROGRAM % peer, f"#!{sys.executable}")])
        values.verify(checked, "smoke", list(one) or [self.item])
        checked.close()
        return {name.removeprefix("values: "): row for name, row in self.saved().items()}

    def test_a_wrong_second_gradient_is_found(self):
        row = self.verify("4 5 6", "4 5 6")[self.item.work]
        self.assertEqual(row["status"], "passed")
        self.assertIn("3 results are right", row["note"])
        os.remove(os.path.join(self.folder, "results/gpu_check.json"))
        row = self.verify("4 5 6.01", "4 5 6")[self.item.work]
        self.assertEqual(row["status"], "failed")
        self.assertIn("1 of 3 are wrong: dweight differs by 0.0017", row["note"])

    def test_values_are_compared(self):
        reference = "ok y: 1 2 3"
        right = lambda item, ours: values.compare(item, ours, reference, "failed no torch")[0]  # noqa: E731
        f32, bf16 = items.Item("softmax f32 8 8", .95, 2), items.Item("softmax bf16 8 8", .95, 2)
        self.assertTrue(right(f32, "ok y: 1 2 3.0001"))
        self.assertFalse(right(f32, "ok y: 1 2 3.01"))
        self.assertTrue(right(bf16, "ok y: 1 2 3.01"))
        for wrong in ("ok y: nan 2 3", "ok y: 1 2 inf", "ok y: 1 2", "ok z: 1 2 3", "ok"):
            self.assertFalse(right(f32, wrong), wrong)

    def test_an_inaccurate_pytorch_does_not_widen_the_tolerance_of_an_operation(self):
        item = items.Item("cross_entropy_backward bf16 8 8", .9, 2)
        right, note = values.compare(item, "ok dx: 1 1.05", "ok dx: 1 1", "ok dx: 1 1.05")
        self.assertFalse(right)
        self.assertIn("PyTorch by 0.05", note)
        self.assertTrue(values.compare(item, "ok dx: 1 1.002", "ok dx: 1 1", "ok dx: 1 1.05")[0])

    def test_a_whole_step_may_be_three_times_as_far_off_as_pytorch(self):
        step = items.Item("step_resnet18 f32 2 32", None, kind="step")
        for ours, peer, right in (("1.02", "1.01", True), ("1.04", "1.01", False), ("1.02", "1", False),
                                  ("1.0009", "1", True), ("1.06", "1.04", False)):
            self.assertEqual(values.compare(step, f"ok y: {ours}", "ok y: 1", f"ok y: {peer}")[0], right, (ours, peer))

    def test_a_step_under_autocast_has_the_tolerance_of_bf16(self):
        step = items.Item("step_gpt2@auto bf16 2 4 1 16 11", None, kind="step")
        for ours, peer, right in (("1.015", "1", True), ("1.02", "1", False), ("1.1", "1.04", True), ("1.6", "1.3", False)):
            self.assertEqual(values.compare(step, f"ok y: {ours}", "ok y: 1", f"ok y: {peer}")[0], right, (ours, peer))

    def test_without_pytorch_the_cpu_is_compared_with(self):
        for ours, cpu, status in (("4 5 6", "4 5 6", "passed"), ("4 5 6.01", "4 5 6", "failed"), ("4 5 6", None, "not run")):
            one = self.check()
            one.ours = one.talk([self.program("ours", FAKE_PROGRAM % ours, f"#!{sys.executable}")])
            one.cpu = one.talk([self.program("cpu", FAKE_PROGRAM % cpu, f"#!{sys.executable}") if cpu else "/nonexistent"])
            one.peer = one.talk([self.program("peer", "exit 1")])
            one.report.forget("smoke")
            values.verify(one, "smoke", [self.item])
            one.close()
            row = self.saved()["values: " + self.item.work]
            self.assertEqual(row["status"], status)
            self.assertIn("PyTorch says: the program ended with status 1" if cpu and status == "passed" else "", row["note"])

    def test_values_of_a_library_that_is_missing_are_not_own_values(self):
        item = items.Item("linear@vendor f32 8 8 8")
        one = self.check()
        one.libraries["cuBLASLt"] = False
        one.ours = Talker("failed: it must not be asked")
        self.assertEqual(values.verify_one(one, item), ("not run", "cuBLASLt is not available"))

    def test_what_is_left_when_time_is_over_is_verified_by_the_next_call(self):
        second = items.Item("linear_backward f32 8 8 8", .9)
        rows = self.verify("4 5 6", "4 5 6", self.item, second, limit=0.5)
        self.assertEqual({rows[item.work]["status"] for item in (self.item, second)}, {"left"})
        rows = self.verify("4 5 6", "4 5 6", self.item, second)
        self.assertEqual({rows[item.work]["status"] for item in (self.item, second)}, {"passed"})
        # Wrong answers now have no effect, because verified items must not run again.
        rows = self.verify("0", "0 0", self.item, second)
        self.assertEqual({rows[item.work]["status"] for item in (self.item, second)}, {"passed"})

    def test_every_input_of_a_backward_benchmark_has_its_gradient_compared(self):
        if not BUILD:
            self.skipTest("no build folder was given")
        works = [items.small(item).work for item in items.verified(items.operations(), items.policy()) if "_backward" in item.work]
        found = process.run([os.path.join(BUILD, "bin/bench_gpu_ops"), "cpu"], 60,
                            text="".join(f"start {work}\n" for work in works))
        for work, answer in zip(works, found.text.splitlines()):
            names = {"attention_backward": {"dq", "dk", "dv"}, "cross_entropy_backward": {"dx"},
                     "ctc_loss_backward": {"dx"}, "embedding_backward": {"dweight"}, "eager_mul_backward": {"y"}}.get(work.split()[0].partition("@")[0], {"dx", "dweight", "dbias"})
            self.assertEqual(set(values.parse(answer)), names, work)

    def on_the_stand_in(self, *commands):
        """Returns the answers of bench_gpu_ops with the CUDA runtime that needs no GPU."""
        runtime = os.path.join(BUILD or "", "ptx_runtime/libcudart.so.13")
        if not os.path.exists(runtime):
            self.skipTest("no build folder with the CUDA runtime of tools/ptx was given")
        found = process.run([os.path.join(BUILD, "bin/bench_gpu_ops"), "cuda", *commands], 100, environment={
            "LD_PRELOAD": runtime, "OMP_NUM_THREADS": "1", "TAPESTRY_PTX_CHECK": "none", "TAPESTRY_CACHE_DIR": ""})
        return [line for line in found.text.splitlines() if line.startswith(("ok", "none", "failed"))]

    def test_a_captured_step_has_the_gradients_of_the_step(self):
        step, captured = self.on_the_stand_in("start step_mlp f32 2", "start step_mlp_captured f32 2")
        self.assertEqual(captured, step)
        self.assertEqual(len(values.parse(step)), 7)

    def test_kernels_of_another_policy_do_not_count(self):
        answers = self.on_the_stand_in(*(f"start linear@{policy} {sizes}" for policy, sizes in (
            ("custom", "f32 8 8 8"), ("vendor", "f32 8 8 8"), ("wgmma", "bf16 72 136 72"), ("wgmma", "f32 72 136 72"))))
        self.assertEqual([answer.split()[0] for answer in answers], ["ok", "none", "ok", "none"], answers)
        self.assertIn("others ran in their place", answers[1])

    def test_a_region_between_the_samples_is_compared_too(self):
        if not BUILD:
            self.skipTest("no build folder was given")
        found = process.run([os.path.join(BUILD, "bin/bench_gpu_ops"), "cpu", "start copy f32 100000"], 60)
        self.assertEqual(len(values.parse(found.text)["y"]), 256 + 2 * 64)


class PtxMachine(Case):
    """A dry run on the CUDA runtime of tools/ptx."""

    def test_patience_multiplies_the_limit_of_an_answer(self):
        late = self.program("late", "read line; sleep 3; echo ok")
        self.assertIn("failed", process.Program([late], patience=0.001).ask("x", 60))

    def test_a_dry_run_on_the_ptx_machine_has_patience_and_lets_ragged_tiles_load_unwritten_memory(self):
        self.program("bench_gpu_ops", 'while read -r line; do echo "ok $TAPESTRY_PTX_CHECK"; done')
        for given, device, patience, expected in ((None, "cuda", 10, "ok initialised"), ("none", "cuda", 10, "ok none"),
                                                  (None, "cpu", 1, "ok ")):
            with unittest.mock.patch.dict(os.environ):
                os.environ.pop("TAPESTRY_PTX_CHECK", None)
                if given:
                    os.environ["TAPESTRY_PTX_CHECK"] = given
                one = self.check("--dry-run", device)
                self.assertEqual((one.ours.patience, one.ours.ask("x", 60)), (patience, expected))
                with unittest.mock.patch.object(one, "run") as run:
                    one.once("steps", "a", ["true"], "a", 30)
                self.assertEqual(run.call_args.args[2], 30 * patience)
                one.close()


class Benchmarks(Case):
    def bench(self, ours, peer=Talker("ok", "1"), copier=Talker("ok", "1")):
        one = self.check()
        one.ours, one.peer, one.copier = ours, peer, copier
        return bench.Bench(one, "bench")

    def measure_all(self, ours, peer, *all_items, limit=60, vendor="/nonexistent"):
        one = self.check(limit=limit)
        one.ours, one.peer, one.vendor = one.talk([ours], 10**6), one.talk([peer]), one.talk([vendor])
        one.copier = one.talk([peer])
        bench.measure_all(one, "bench", list(all_items))
        one.close()
        return self.saved()

    def test_goals(self):
        b = self.bench(None)
        speed, cost = items.Item("linear f32 8 8 8", 1.0), items.Item("eager_mul f32 500", 0.5, kind="cost")
        self.assertTrue(b.judge(speed, times(2.0, 2.0))["reached"])
        self.assertFalse(b.judge(speed, times(2.1, 2.0))["reached"])
        self.assertTrue(b.judge(cost, times(1.0, 2.0))["reached"])
        self.assertFalse(b.judge(cost, times(1.1, 2.0))["reached"])
        n = 1 << 28
        memory = items.Item(f"gelu f32 {n}", 0.95, passes=2)
        row = b.judge(memory, times(1.0, 5.0, 0.96))
        self.assertAlmostEqual(row["ratio"], 0.96)
        self.assertTrue(row["reached"])
        self.assertFalse(b.judge(memory, times(1.0, 5.0, 0.94))["reached"])
        half = items.Item(f"gelu bf16 {n}", 0.95, passes=2)
        self.assertAlmostEqual(b.judge(half, times(1.0, 5.0, 0.96))["ratio"], 0.48)
        # The goal must not be reached if there is no copy to compare with.
        self.assertFalse(b.judge(half, times(1.0, 5.0))["reached"])

    def test_layers_share_a_goal_also_after_a_second_call(self):
        for ratio in (0.5, 2.0, 0.9):
            b = self.bench(None)  # this object reads the rows that the others have written
            item = items.Item(f"conv2d f32 {ratio}", 0.85, mean_of="conv2d f32")
            b.judge(item, times(1.0, ratio))
            b.mean(item)
        row = self.saved()["conv2d f32: all layers"]
        self.assertAlmostEqual(row["ratio"], 0.9 ** (1 / 3))
        self.assertTrue(row["reached"])

    def test_programs_that_cannot(self):
        item = items.Item("linear f32 8 8 8", 1.0)
        for ours, status in ((Talker("none [gemm] no kernel"), "no kernel"), (Talker("failed out of memory"), "failed"),
                             (Talker("ok", "failed died"), "failed")):
            self.assertEqual(self.bench(ours).measure(item)["status"], status)
        b = self.bench(Talker("ok", "1"), copier=Talker("failed no torch"))
        b.measure(items.Item("gelu f32 8", .95, 2))
        self.assertEqual(self.saved()["copy"]["status"], "not run")

    def test_without_pytorch_ours_is_measured(self):
        program = self.program("ours", "while read -r word rest; do [[ $word == prepare ]] && echo ok || echo 0.5; done")
        count = os.path.join(self.folder, "started")
        peer = self.program("peer", f"echo >>{count}; while read -r line; do echo failed no torch; done")
        works = ["linear f32 8 8 8", "gelu f32 1000", "eager_mul f32 5"] + [f"conv2d f32 {n}" for n in range(6)]
        rows = self.measure_all(program, peer, items.Item(works[0], 1.0), items.Item(works[1], .95, 2),
                                items.Item(works[2], .5, kind="cost"),
                                *(items.Item(work, .85, mean_of="conv2d f32") for work in works[3:]))
        for work in works:
            self.assertEqual((rows[work]["status"], rows[work]["value"], rows[work]["ratio"]), ("measured", 0.5, None))
            self.assertIn("PyTorch", rows[work]["note"])
        self.assertFalse(rows["gelu f32 1000"]["reached"])
        self.assertNotIn("conv2d f32: all layers", rows)
        with open(count) as file:
            self.assertEqual(len(file.readlines()), 3 + 1)  # the peer started three times and the copier once

    def test_programs_take_turns(self):
        asked = []

        class Timed(Talker):
            def ask(self, line, limit):
                asked.append((self, line))
                return "ok" if line.startswith("prepare") else "0.5"

        ours, peer = Timed(""), Timed("")
        row = self.bench(ours, peer).measure(items.Item("linear f32 8 8 8", 1.0))
        self.assertEqual((row["status"], row["ratio"]), ("measured", 1.0))
        # A turn of 20 ms has 40 calls of 0.5 ms; the first turn is a warm-up.
        turns = [who for who, line in asked if line == "time 40"]
        self.assertEqual(turns, [ours, peer] * (1 + bench.ROUNDS))

    def test_an_own_kernel_stands_beside_the_vendors(self):
        asked = os.path.join(self.folder, "asked")
        ours = self.program("ours", "while read -r word rest; do [[ $word == prepare ]] && echo ok || echo 1.0; done")
        vendor = self.program("vendor", f"while read -r word rest; do echo $word $rest >>{asked}; "
                                        "[[ $word == prepare ]] && echo ok || echo 0.5; done")
        item = items.Item("linear@custom f32 8 8 8", .6, beside="vendor")
        row = self.measure_all(ours, "/nonexistent", item, vendor=vendor)[item.work]
        self.assertEqual((row["value"], row["peer"], row["peer_name"], row["ratio"], row["reached"]),
                         (1.0, 0.5, "vendor", 0.5, False))
        with open(asked) as file:
            self.assertEqual(file.readline(), "prepare linear@vendor f32 8 8 8\n")
        one = self.check()
        one.libraries["cuBLASLt"], one.ours, one.vendor = False, Talker("ok", "0.5"), None
        row = bench.Bench(one, "bench").measure(item)  # the policy vendor would take own kernels
        self.assertEqual((row["status"], row["ratio"]), ("measured", None))
        self.assertIn("vendor is not there to compare with: cuBLASLt is not available", row["note"])

    def test_a_training_step_is_timed_beside_each_mode_of_pytorch(self):
        lines = os.path.join(self.folder, "lines")
        ours = self.program("ours", "while read -r word rest; do [[ $word == prepare ]] && echo ok || echo 0.5; done")
        peer = self.program("peer", f"while read -r word rest; do echo $word $rest >>{lines}; "
                                    "case $word$rest in preparegraph*) echo failed no graph ;; prepare*) echo ok ;; "
                                    "*) echo 1 ;; esac; done")
        item = items.Item("step_mlp f32 4", None, kind="step", modes=("eager", "compiled", "graph", "autocast"))
        rows = self.measure_all(ours, peer, item)
        with open(lines) as file:
            prepared = [line.split(None, 1)[1].strip() for line in file if line.startswith("prepare")]
        self.assertEqual(prepared, ["step_mlp f32 4"] + [mode + ":step_mlp f32 4" for mode in item.modes[1:]])
        self.assertEqual([rows[f"step_mlp f32 4, {mode}"].get("ratio") for mode in item.modes], [2.0, 2.0, None, 2.0])
        self.assertIn("bf16", rows["step_mlp f32 4, autocast"]["note"])
        self.assertIn("no graph", rows["step_mlp f32 4, graph"]["note"])

    def test_a_wrong_result_is_timed_and_reaches_no_goal(self):
        report = self.check().report
        for of, sizes in (("linear f32", "9 9 9"), ("conv2d f32", "1")):
            report.row("smoke", f"values: {of} {sizes}", "failed", note="wrong", of=of)
        b = self.bench(Talker("ok", "0.5"), Talker("ok", "0.9"))
        row = b.measure(items.Item("linear f32 8 8 8", 1.0))
        self.assertEqual((row["status"], row["value"], row["peer"], row["reached"]), ("measured", 0.5, 0.9, False))
        self.assertIn("values of this operation are wrong", row["note"])
        item = items.Item("conv2d f32 1", 0.85, mean_of="conv2d f32")
        b = self.bench(Talker("ok", "0.5"), Talker("ok", "0.9"))
        b.measure(item)
        b.mean(item)
        self.assertNotIn("conv2d f32: all layers", self.saved())

    def test_what_the_policy_auto_chose_is_in_the_row(self):
        ours = Talker("ok gemm float32 m=8 n=8 k=8: cuBLASLt", "0.5")
        for peer in (Talker("ok", "0.9"), Talker("failed no torch")):
            row = self.bench(ours, peer).measure(items.Item("linear@auto f32 8 8 8", None))
            self.assertIn("gemm float32 m=8 n=8 k=8: cuBLASLt", row["note"])
            ours.answers = ["ok gemm float32 m=8 n=8 k=8: cuBLASLt", "0.5"]

    def test_a_bare_launch_has_no_peer(self):
        class Nobody:
            def ask(self, line, _limit):
                raise AssertionError(line)

        b = self.bench(Talker("ok", "0.002"), Nobody())
        row = b.measure(items.Item("launch f32 500", None, kind="launch"))
        self.assertEqual((row["status"], row["value"], "goal" in row), ("measured", 0.002, False))
        row = b.judge(items.Item("eager_mul_backward f32 500", 0.5, kind="cost", launches=2), times(0.005, 0.009))
        self.assertIn("bare launches take 0.004; Tapestry itself takes 0.001, PyTorch 0.005", row["note"])
        self.assertFalse(row["reached"])  # the goal is for the whole time, including launches

    def test_items_with_a_goal_of_their_own_come_before_the_layers(self):
        for part in (items.operations, items.memory):
            alone = [item.mean_of is None for item in part()]
            self.assertEqual(alone, sorted(alone, reverse=True))

    def test_the_short_phases_are_parts_of_all(self):
        everything = {item.work for item in [*items.operations(), *items.policy(), *items.steps()]}
        self.assertLessEqual({item.work for item in items.first()}, everything)
        smoke = items.smoke()
        self.assertEqual(len({item.work for item in smoke}), len(smoke))
        self.assertLessEqual({(item.name, item.dtype) for item in [*items.operations(), *items.policy()] if item.kind != "launch"},
                             {(item.name, item.dtype) for item in smoke})
        for item in items.policy():  # both sides of each decision
            self.assertIn(item.work, {each.work for each in smoke})
            self.assertIn(item.by_vendor.work, {each.work for each in smoke})
        self.assertEqual({item.by_vendor.library for item in items.policy()}, {"cuBLASLt", "cuDNN"})

    def test_each_goal_of_the_project_has_a_row(self):
        goals = {}
        for item in [*items.policy(), *items.operations(), *items.compiled_steps(), *items.steps()]:
            goals.setdefault(f"{item.name} {item.dtype}", item.goal)
        for name in ("softmax", "layer_norm", "rms_norm", "copy", "add", "gelu", "adamw"):  # beside a copy
            self.assertEqual(goals[f"{name} f32"], .95, name)
        for name, goal in {"linear@custom f32": .90, "linear@custom bf16": .60, "linear_gelu@custom bf16": .60,
                           "linear_gelu@auto bf16": 1.05, "conv2d@custom bf16": .60, "conv2d_bias_relu@auto bf16": 1.0,
                           "attention@custom bf16": .65, "attention_backward@custom bf16": .55,
                           "attention@auto bf16": 1.0, "attention_backward@auto bf16": 1.0,
                           "step_mlp_captured f32": {"eager": 10.0, "graph": 1.5},
                           "step_resnet18@auto bf16": {"compiled": 1.15}}.items():
            self.assertEqual(goals[name], goal, name)
        gpt2 = next(item for item in items.compiled_steps() if item.work.startswith("step_gpt2@auto bf16 64 1024"))
        self.assertEqual((gpt2.goal, gpt2.flops[1]), ({"compiled": 1.15}, .45))
        # docs of llm.c count 803.5 million operations for a token of GPT-2 124M
        self.assertAlmostEqual(gpt2.flops[0] / (64 * 1024) / 1e6, 803.3, delta=.3)

    def test_the_rate_of_operations_is_compared_with_the_peak(self):
        b = self.bench(None)
        item = items.Item("step_gpt2@auto bf16 1 1 1 1 1", {"compiled": 1.15}, kind="step", flops=(items.PEAK / 100, .45))
        self.assertTrue(b.judge(item, times(20.0, 24.0), "compiled")["reached"])
        row = self.saved()[f"{item.work}: of peak"]
        self.assertAlmostEqual(row["ratio"], .5)
        self.assertTrue(row["reached"])
        self.assertFalse(b.judge(item, times(25.0, 24.0), "compiled")["reached"])
        self.assertFalse(self.saved()[f"{item.work}: of peak"]["reached"])

    def test_a_program_that_hangs_when_time_is_over_has_not_failed(self):
        program = self.program("silent", "sleep 60")
        start = time.monotonic()
        with unittest.mock.patch.object(bench, "LEAST", 0.1):
            rows = self.measure_all(program, program, items.Item("linear f32 8 8 8", 1.0), limit=0.5)
        self.assertLess(time.monotonic() - start, 10)
        self.assertEqual(rows["linear f32 8 8 8"]["status"], "left")

    def test_what_is_left_when_time_is_over_is_measured_by_the_next_call(self):
        program = self.program("ours", "while read -r word rest; do [[ $word == prepare ]] && echo ok || echo 0.5; done")
        all_items = [items.Item("linear f32 8 8 8", 1.0), items.Item("linear f32 9 9 9", 1.0)]
        rows = self.measure_all(program, program, *all_items, limit=0.1)
        self.assertEqual({row["status"] for row in rows.values()}, {"left"})
        rows = self.measure_all(program, program, *all_items)
        self.assertEqual({row["status"] for row in rows.values()}, {"measured"})
        when = {row["when"] for row in rows.values()}
        self.assertEqual({row["when"] for row in self.measure_all(program, program, *all_items).values()}, when)

    def test_after_a_failure_the_program_is_started_again(self):
        count = os.path.join(self.folder, "started")
        ours = self.program("ours", f"echo >>{count}; while read -r line; do echo failed an illegal address; done")
        peer = self.program("peer", "while read -r line; do echo ok; done")
        self.measure_all(ours, peer, *(items.Item(f"linear f32 {n}", 1.0) for n in range(5)))
        with open(count) as file:
            self.assertEqual(len(file.readlines()), 5)

    def test_bytes(self):
        self.assertAlmostEqual(items.Item("batch_norm_backward f32 160 64 112", .9, 5).gigabytes,
                               5 * 4 * 160 * 64 * 112 * 112 / 1e9)
        # The tensors must be much larger than the cache of any GPU, so that the memory bandwidth is measured.
        self.assertTrue(all(item.passes is None or item.gigabytes / item.passes > 0.24 for item in items.operations()))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        BUILD = sys.argv.pop()
    unittest.main()
