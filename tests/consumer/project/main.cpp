// A consumer's program: own folders core/ and data/, own CHECK, own Tensor.
#define CHECK(condition) \
  if (!(condition)) return std::printf("failed: %s\n", #condition), 1

#include "tapestry/tapestry.h"

#include <cstdio>

#include "core/config.h"
#include "data/tensor.h"

int main() {
  const Tensor mine{batch_size()};
  std::vector<float> values(static_cast<std::size_t>(mine.rows), 1.5f);
  const tapestry::Tensor x = tapestry::from_blob(values.data(), {mine.rows});
  CHECK(x.numel() == mine.rows);
  CHECK(x.data<float>()[mine.rows - 1] == 1.5f);
  return 0;
}
