"""The phase `profile` measures six kernels with ncu (Nsight Compute), if it is installed and may read the hardware
counters."""
import csv
import io
import re

# Pairs of a benchmark and a pattern for the names of the kernels to profile. Other kernels only create the inputs.
PROFILED = [("softmax f32 16384 8192", "softmax|row_|columns"),
            ("layer_norm_backward f32 65536 2048", "layer_norm"),
            ("adamw f32 4 33554432", "step_chunks|adam"),
            ("linear@custom f32 4096 4096 4096", "gemm"),
            ("linear@custom bf16 4096 4096 4096", "gemm"),
            ("conv2d@custom f32 64 64 56 56 64 3 1 1", "conv|gemm|gather")]
METRICS = {"gpu__time_duration.sum": "time",
           "dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM throughput",
           "sm__throughput.avg.pct_of_peak_sustained_elapsed": "SM throughput",
           "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy",
           "launch__registers_per_thread": "registers per thread",
           "l1tex__data_bank_conflicts_pipe_lsu.sum": "shared-memory bank conflicts"}
LIMIT = 90  # seconds for one benchmark
REFUSED = re.compile(r"ERR_NVGPUCTRPERM|permission|not supported|No metrics|unable to|Failed to", re.IGNORECASE)


def kernels(text):
    """Parses the output of ncu --csv into {kernel: {metric: "value unit"}}. Lines of other output are skipped."""
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    found = {}
    if begin is None:
        return found
    for row in csv.DictReader(io.StringIO("\n".join(line for line in lines[begin:] if line.startswith('"')))):
        name = METRICS.get(row.get("Metric Name"))
        if name:
            kernel = f"{row.get('ID')}: {row.get('Kernel Name', '').split('(')[0]}"
            found.setdefault(kernel, {})[name] = f"{row.get('Metric Value')} {row.get('Metric Unit') or ''}".strip()
    return found


def profile(check, ours_command, _peer_command):
    tool = check.tool("ncu")
    for work, names in PROFILED:
        name = "ncu: " + work
        why = "ncu was not found" if not tool else "dry run" if check.dry else ""
        if why:
            check.report.row("profile", name, "not run", note=why)
            continue
        # --clock-control none keeps ncu from changing the GPU's clock rates, because the machine may belong to others.
        command = [tool, "--clock-control", "none", "--csv", "--metrics", ",".join(METRICS), "--kernel-name-base",
                   "function", "--kernel-name", "regex:" + names, "--launch-count", "4", *ours_command, "start " + work]
        found = check.once("profile", name, command, "ncu-" + work.replace(" ", "-"), LIMIT)
        if not found:
            continue
        measured = kernels(found.text)
        if measured:
            note = "; ".join(f"{kernel}: " + ", ".join(f"{metric} {value}" for metric, value in metrics.items())
                             for kernel, metrics in measured.items())
            check.report.row("profile", name, "measured", seconds=found.seconds, note=note)
        elif any(line.startswith("none ") for line in found.text.splitlines()):
            check.report.row("profile", name, "no kernel", seconds=found.seconds)
        else:  # a missing permission is not a failure of the kernel
            why = "ncu refused: " if REFUSED.search(found.text) else "ncu gave no metrics: "
            check.report.row("profile", name, "not run", seconds=found.seconds, note=why + found.tail(3))
