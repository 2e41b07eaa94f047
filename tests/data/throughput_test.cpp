#include <chrono>
#include <cstring>

#include "tapestry/data/dataloader.h"
#include "tapestry/data/transforms.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::data;

// The data loader must not limit the training of apps/classifier. Making the batches of an epoch takes 0.03
// s, and training on them takes 15 s.
TEST_CASE(
    "an epoch of 60000 bytes images, shuffled, in batches of 128, normalised, costs far below a second") {
  const TensorDataset dataset(empty({60000, 1, 28, 28}, DType::u8), empty({60000}, DType::i64));
  std::memset(dataset.input().raw_data(), 7, dataset.input().nbytes());
  DataLoader loader(dataset,
                    {.batch_size = 128, .shuffle = true, .transforms = {normalize({0.286f}, {0.353f})}});
  const auto start = std::chrono::steady_clock::now();
  std::int64_t images = 0;
  float last = 0;
  for (auto& [input, target] : loader) {
    images += input.size(0);
    last = input.data<float>()[783];
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  CHECK(images == 60000);
  CHECK(last == (7 / 255.0f - 0.286f) / 0.353f);
  INFO("an epoch took " << seconds << " s");
  CHECK(seconds < 0.5);  // slack for a loaded machine
}
