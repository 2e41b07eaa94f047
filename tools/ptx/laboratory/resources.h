#pragma once
// Registers of kernels, which only ptxas knows.
#include <cstdint>
#include <map>
#include <string>

namespace tapestry::ptx {

/// Compiles the PTX in a program file with ptxas, if it is installed, and reads how many registers each
/// kernel gets on sm_90. Kernels by their symbols; empty without ptxas.
std::map<std::string, std::uint32_t> registers_by_ptxas(const std::string& program);

}  // namespace tapestry::ptx
