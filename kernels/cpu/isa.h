#pragma once
// The instruction sets for which some kernels are compiled besides that of the library.

namespace tapestry::kernels::cpu {

/// Each instruction set contains those before it. avx2 has FMA and F16C, and avx512 has F, BW, DQ and VL.
enum class Isa { none, avx2, avx512, avx512_vnni, avx512_bf16 };

/// What the files of this folder were compiled for. Code for a larger instruction set is chosen by isa().
extern const Isa kCompiledFor;
/// The largest instruction set that the processor has. The library's start calls it before any code of this
/// folder runs (kernels/processor.cpp).
Isa isa_of_processor();

/// The largest instruction set that kernels may choose: that of the processor, or what the environment
/// variables ONEDNN_MAX_CPU_ISA and DNNL_MAX_CPU_ISA allow, if that is less. oneDNN reads the same variables
/// (its documentation lists their values), so one of them limits its kernels and Tapestry's alike. Code that
/// has no choice uses kCompiledFor.
Isa isa();

}  // namespace tapestry::kernels::cpu
