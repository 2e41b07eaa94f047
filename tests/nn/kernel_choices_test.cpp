// Tests that checkpoints keep the choices of kernels that a run has made.
#include "tapestry/core/error.h"
#include "tapestry/core/kernel_policy.h"
#include "tapestry/kernels/choice_table.h"
#include "tapestry/kernels/policy.h"
#include "tapestry/nn/checkpoint.h"
#include "tapestry/nn/layers/linear.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;

namespace {

std::string some_choices(const std::string& name) {
  kernels::ChoiceTable table;
  table[{"NVIDIA H100 80GB HBM3", "gemm", "bfloat16 m=8 n=8 k=8"}] = {"tapestry,cuBLASLt 13.1.0", name};
  kernels::reset_policy();
  const std::string empty = kernel_choices();
  const std::string owner = empty.substr(empty.find('\n') + 1);
  return kernels::choices_text(table, owner.substr(0, owner.find('\n')));
}

}  // namespace

TEST_CASE("a resumed run takes over the checkpoint's choices of kernels") {
  const tests::TempDir folder;
  const std::string path = folder / "a.safetensors";
  nn::Linear net({.in_features = 2, .out_features = 3});
  const nn::Training training{&net};

  const std::string saved = some_choices("cuBLASLt");
  set_kernel_choices(saved);
  nn::save_checkpoint(path, training, {.step = 5, .extra = {{"loader", "x"}}});
  const std::string later = some_choices("tapestry");
  set_kernel_choices(later);
  const nn::Progress progress = nn::load_checkpoint(path, training);
  CHECK(kernel_choices() == saved);
  CHECK(progress.extra == StringMap{{"loader", "x"}});

  // A run without choices, such as one on a CPU, writes none, and loading changes none.
  kernels::reset_policy();
  nn::save_checkpoint(path, training, {.step = 5});
  CHECK(tests::read_file(path).find("kernel_choices") == std::string::npos);
  set_kernel_choices(later);
  CHECK(nn::load_checkpoint(path, training).extra.empty());
  CHECK(kernel_choices() == later);
  kernels::reset_policy();
}

TEST_CASE("a checkpoint with broken choices of kernels is an error before anything is loaded") {
  const tests::TempDir folder;
  const std::string path = folder / "a.safetensors";
  nn::Linear net({.in_features = 2, .out_features = 3});
  set_kernel_choices(some_choices("cuBLASLt"));
  nn::save_checkpoint(path, {&net}, {.step = 5});
  std::string bytes = tests::read_file(path);
  const std::size_t at = bytes.find("end 1");
  REQUIRE(at != std::string::npos);
  bytes[at + 4] = '2';
  tests::write_file(path, bytes);
  kernels::reset_policy();
  const std::string before = kernel_choices();
  const NoGradGuard no_grad;
  net.weight.tensor().fill_(7);
  CHECK_THROWS_WITH(nn::load_checkpoint(path, {&net}), ContainsSubstring("its kernel choices are broken"));
  CHECK_THROWS_AS(nn::load_checkpoint(path, {&net}), IoError);
  CHECK(net.weight.tensor().data<float>()[0] == 7);
  CHECK(kernel_choices() == before);
}
