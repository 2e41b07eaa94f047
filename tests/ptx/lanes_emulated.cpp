#include "tests/ptx/lanes.cuh"

namespace ptx_test {

Words emulate(Instruction instruction, const Words& in) {
  const int cases = count_cases(instruction, in);
  Words out(static_cast<std::size_t>(cases * 32 * words_out(instruction)), 0xdeadbeef);
  launch_lanes(instruction, cases, {in.data(), out.data()}, nullptr);
  return out;
}

}  // namespace ptx_test
