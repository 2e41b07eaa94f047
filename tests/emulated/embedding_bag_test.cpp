// The kernel that reduces bags must give the CPU's values, and report the same invalid indices and offsets.
#include "tapestry/kernels/cuda/embedding_bag.cuh"

#include "tests/emulated/index.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

namespace {

struct Lists {
  std::vector<std::int64_t> index, offsets;
  bool has_end = false;
};

template <class T>
void check_bags(BagMode mode, std::int64_t rows, std::int64_t columns, const Lists& b, std::int64_t padding,
                bool scaled) {
  const auto n = static_cast<std::int64_t>(b.index.size());
  const std::int64_t bags = static_cast<std::int64_t>(b.offsets.size()) - (b.has_end ? 1 : 0);
  const Tensor weight = tensor(inexact<float>(rows * columns, 8), {rows, columns}).to(dtype_of<T>);
  const Tensor index = tensor(b.index), offsets = tensor(b.offsets);
  const Tensor scales = tensor(inexact<float>(n, 5)).to(dtype_of<T>);
  CAPTURE(static_cast<int>(mode), rows, columns, n, bags, padding, scaled, dtype_name(dtype_of<T>));
  struct Results {
    Tensor out, bag_of, sizes, chosen;
    std::int64_t bad = kNoBadIndex, bad_offset = kNoBadIndex;
  };
  const auto results = [&](double fill) {
    return Results{full({bags, columns}, fill, dtype_of<T>), full({n}, -7, kInt64), full({bags}, -7, kInt64),
                   full({bags, columns}, -7, kInt64)};
  };
  const auto args = [&](Results& r) {
    return kernels::EmbeddingBagArgs{.mode = mode,
                                     .count = n,
                                     .rows = rows,
                                     .columns = columns,
                                     .bags = bags,
                                     .per_bag = 0,
                                     .row_stride = columns,
                                     .column_stride = 1,
                                     .padding = padding,
                                     .has_end = b.has_end,
                                     .weight = weight,
                                     .indices = index,
                                     .offsets = offsets,
                                     .scales = scaled ? ConstArray(scales) : ConstArray(),
                                     .out = r.out,
                                     .bag_of = r.bag_of,
                                     .sizes = r.sizes,
                                     .chosen = r.chosen,
                                     .first_bad = &r.bad,
                                     .first_bad_offset = &r.bad_offset};
  };
  Results want = results(1);
  kernels::embedding_bag(kCPU, dtype_of<T>, args(want));
  in_each_order([&] {
    Results got = results(2);
    gpu::launch_embedding_bag<T>({}, args(got));
    // The CPU's compiler may contract a product and a sum, the emulator's may not.
    CHECK(allclose(got.out.to(kFloat32), want.out.to(kFloat32), 1e-2 * (dtype_of<T> == DType::bf16) + 1e-5,
                   1e-3));
    // Bags of invalid offsets may overlap, and then the last one to write wins.
    if (want.bad_offset == kNoBadIndex) CHECK(equal(got.bag_of, want.bag_of));
    CHECK(equal(got.sizes, want.sizes));
    if (mode == BagMode::max) CHECK(equal(got.chosen, want.chosen));
    CHECK(got.bad == want.bad);
    CHECK(got.bad_offset == want.bad_offset);
  });
}

}  // namespace

TEST_CASE("embedding_bag kernel: bags of 0 to 300 indices give the CPU's values in every mode") {
  for_types<float, BFloat16>([]<class T>() {
    for (const BagMode mode : {BagMode::sum, BagMode::mean, BagMode::max}) {
      const Lists b{indices(340, 20, 9), {0, 0, 1, 5, 5, 305, 340}, false};
      check_bags<T>(mode, 20, 7, b, -1, false);
      check_bags<T>(mode, 20, 70, b, 10, false);
      const Lists whole{indices(30, 20, 3), {0, 10, 10, 30}, true};
      check_bags<T>(mode, 20, 9, whole, -1, mode == BagMode::sum);
    }
  });
}

TEST_CASE("embedding_bag kernel: invalid indices and offsets are reported like the CPU's") {
  Lists b{indices(30, 20, 9), {0, 4, 12}, false};
  b.index[17] = 20, b.index[9] = -1;
  check_bags<float>(BagMode::sum, 20, 5, b, -1, false);
  b.index = indices(30, 20, 9);
  for (const std::vector<std::int64_t>& offsets :
       {std::vector<std::int64_t>{1, 4, 12}, {0, 12, 4}, {0, 4, 31}, {0, -2, 12}}) {
    b.offsets = offsets;
    for (const bool has_end : {false, true}) {
      b.has_end = has_end;
      check_bags<float>(BagMode::mean, 20, 5, b, -1, false);
    }
  }
}
