#pragma once
// The instruction sets for which some kernels are compiled besides that of the library.
#include <string>

namespace tapestry::kernels::cpu {

/// Each instruction set contains those before it. avx2 has FMA and F16C, avx512 has F, BW, DQ and VL, and amx
/// has AMX-TILE and AMX-BF16.
enum class Isa { none, avx2, avx512, avx512_vnni, avx512_bf16, amx };

/// What the files of this folder were compiled for. Code for a larger instruction set is chosen by isa().
extern const Isa kCompiledFor;
/// The largest instruction set that the processor and the operating system have. The library's start calls it
/// before any code of this folder runs (kernels/processor.cpp).
Isa isa_of_processor();

/// The largest instruction set that kernels may choose: that of the processor, or what the environment
/// variables ONEDNN_MAX_CPU_ISA and DNNL_MAX_CPU_ISA allow, if that is less. oneDNN reads the same variables
/// (its documentation lists their values), so one of them limits its kernels and Tapestry's alike. A process
/// must ask Linux for AMX's registers. The first call asks, and returns avx512_bf16 if Linux refuses.
/// Code that has no choice uses kCompiledFor.
Isa isa();
/// The largest instruction set that a value of these variables allows. oneDNN ignores values that it does not
/// know, and so does this function: they allow all.
Isa isa_allowed_by(std::string name);

}  // namespace tapestry::kernels::cpu
