#pragma once
// Guards of the switches that choose among kernels. A guard sets a switch, and puts it back when it ends.
#include "tapestry/kernels/cpu/bf16_dot.h"
#include "tapestry/kernels/cpu/matmul_amx.h"
#include "tapestry/kernels/cpu/wide.h"

/// Sets bf16_dot_pays().
class Bf16DotPays {
 public:
  explicit Bf16DotPays(bool pays) { tapestry::kernels::cpu::set_bf16_dot_pays(pays); }
  ~Bf16DotPays() { tapestry::kernels::cpu::set_bf16_dot_pays(before_); }
  Bf16DotPays(const Bf16DotPays&) = delete;
  Bf16DotPays& operator=(const Bf16DotPays&) = delete;

 private:
  bool before_ = tapestry::kernels::cpu::bf16_dot_pays();
};

/// Switches the kernels that use AMX's tiles off.
class NoAmxTiles {
 public:
  NoAmxTiles() { tapestry::kernels::cpu::set_amx_tiles(false); }
  ~NoAmxTiles() { tapestry::kernels::cpu::set_amx_tiles(before_); }
  NoAmxTiles(const NoAmxTiles&) = delete;
  NoAmxTiles& operator=(const NoAmxTiles&) = delete;

 private:
  bool before_ = tapestry::kernels::cpu::amx_tiles();
};

/// Switches the loops for AVX-512 on or off.
class WideLoops {
 public:
  explicit WideLoops(bool on) { tapestry::kernels::cpu::set_wide_loops(on); }
  ~WideLoops() { tapestry::kernels::cpu::set_wide_loops(before_); }
  WideLoops(const WideLoops&) = delete;
  WideLoops& operator=(const WideLoops&) = delete;

 private:
  bool before_ = tapestry::kernels::cpu::wide_loops();
};
