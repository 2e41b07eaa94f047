"""The phase `counters` measures six kernels with ncu (Nsight Compute), if it is installed and may read the hardware
counters. Beside the counters that do not depend on time, it puts those that the PTX machine counted without a GPU
(docs/reference/kernel-counters.tsv), and says where the two differ."""
import csv
import io
import os
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
# What ncu and the PTX machine both count. The names are columns of kernel-counters.tsv.
COUNTED = {"l1tex__average_t_sectors_per_requests_pipe_lsu_mem_global_op_ld.ratio": "sectors a load",
           "l1tex__average_t_sectors_per_requests_pipe_lsu_mem_global_op_st.ratio": "sectors a store",
           "smsp__thread_inst_executed_per_inst_executed.ratio": "lanes an instruction"}
COUNTERS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
                        "docs/reference/kernel-counters.tsv")
DIFFERENT = 0.1  # relative
LIMIT = 30  # seconds for one benchmark
REFUSED = re.compile(r"ERR_NVGPUCTRPERM|permission|not supported|No metrics|unable to|Failed to", re.IGNORECASE)


def kernels(text):
    """Parses the output of ncu --csv into {kernel: {metric: "value unit"}}. Lines of other output are skipped."""
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    found = {}
    if begin is None:
        return found
    for row in csv.DictReader(io.StringIO("\n".join(line for line in lines[begin:] if line.startswith('"')))):
        name = {**METRICS, **COUNTED}.get(row.get("Metric Name"))
        if name:
            kernel = f"{row.get('ID')}: {row.get('Kernel Name', '').split('(')[0]}"
            found.setdefault(kernel, {})[name] = f"{row.get('Metric Value')} {row.get('Metric Unit') or ''}".strip()
    return found


def counted(path=COUNTERS):
    """Reads the rows of the PTX machine: {kernel: {column: number}}. A kernel may have rows of several shapes; the
    values are then lists."""
    found = {}
    try:
        with open(path) as file:
            rows = list(csv.DictReader((line for line in file if not line.startswith("#")), delimiter="\t"))
    except OSError:
        return found
    for row in rows:
        values = found.setdefault(row["kernel"], {})
        for column in COUNTED.values():
            if row.get(column) not in (None, "", "-"):
                values.setdefault(column, []).append(float(row[column]))
    return found


def beside(measured, rows):
    """What the PTX machine counted beside what ncu measured: a text such as "softmax_rows: sectors a load 4.00
    (machine 4.00)". A difference of more than DIFFERENT from the nearest row is marked."""
    texts, seen = [], set()
    for kernel, metrics in measured.items():
        name = kernel.split(": ", 1)[1]
        if name not in rows or name in seen:
            continue
        seen.add(name)
        parts = []
        for column in COUNTED.values():
            if column not in metrics or column not in rows[name]:
                continue
            value = float(metrics[column].split()[0].replace(",", ""))
            nearest = min(rows[name][column], key=lambda counted_value: abs(counted_value - value))
            mark = " DIFFERENT" if abs(value - nearest) > DIFFERENT * max(abs(value), abs(nearest)) else ""
            parts.append(f"{column} {value:.2f} (machine {nearest:.2f}){mark}")
        if parts:
            texts.append(f"{name}: " + ", ".join(parts))
    return "; ".join(texts)


def profile(check):
    tool = check.tool("ncu")
    for work, names in PROFILED:
        name = "ncu: " + work
        why = "ncu was not found" if not tool else "dry run" if check.dry else ""
        if why:
            check.report.row("counters", name, "not run", note=why)
            continue
        # --clock-control none keeps ncu from changing the GPU's clock rates, because the machine may belong to others.
        command = [tool, "--clock-control", "none", "--csv", "--metrics", ",".join([*METRICS, *COUNTED]),
                   "--kernel-name-base", "function", "--kernel-name", "regex:" + names, "--launch-count", "4",
                   *check.ours.command, "start " + work]
        found = check.once("counters", name, command, "ncu-" + work.replace(" ", "-"), LIMIT)
        if not found:
            continue
        measured = kernels(found.text)
        if measured:
            times = {kernel: ", ".join(f"{metric} {value}" for metric, value in metrics.items()
                                       if metric not in COUNTED.values()) for kernel, metrics in measured.items()}
            note = "; ".join(f"{kernel}: {text}" for kernel, text in times.items() if text)
            if both := beside(measured, counted()):
                note += " | counted: " + both
            check.report.row("counters", name, "measured", seconds=found.seconds, note=note)
        elif any(line.startswith("none ") for line in found.text.splitlines()):
            check.report.row("counters", name, "no kernel", seconds=found.seconds)
        else:  # a missing permission is not a failure of the kernel
            why = "ncu refused: " if REFUSED.search(found.text) else "ncu gave no metrics: "
            check.report.row("counters", name, "not run", seconds=found.seconds, note=why + found.tail(3))
