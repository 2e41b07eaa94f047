// Tests in-place operations on slices. The elements before, between and after the slice must keep their
// values.
#include <algorithm>
#include <functional>
#include <vector>

#include "tapestry/autograd/ops.h"
#include "tapestry/core/threads.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

using Change = std::function<void(const Tensor&)>;

struct Operation {
  const char* name;
  Change in_place;
  std::function<double(double)> value;  // of one element
};

const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = {
      {"add_", [](const Tensor& t) { t.add_(1); }, [](double x) { return x + 1; }},
      {"sub_", [](const Tensor& t) { t.sub_(full(t.sizes(), 3.0, t.dtype())); },
       [](double x) { return x - 3; }},
      {"mul_", [](const Tensor& t) { t.mul_(full({t.sizes()[t.dim() - 1]}, 2.0, t.dtype())); },
       [](double x) { return x * 2; }},
      {"div_", [](const Tensor& t) { t.div_(4); }, [](double x) { return x / 4; }},
      {"fill_", [](const Tensor& t) { t.fill_(9); }, [](double) { return 9; }},
      {"zero_", [](const Tensor& t) { t.zero_(); }, [](double) { return 0; }},
      {"copy_", [](const Tensor& t) { t.copy_(full({}, 7.0, t.dtype())); }, [](double) { return 7; }},
      {"copy_ of an equal slice", [](const Tensor& t) { t.copy_((t * 2).contiguous()); },
       [](double x) { return x * 2; }},
      {"clamp_", [](const Tensor& t) { t.clamp_(2, 4); }, [](double x) { return std::clamp(x, 2.0, 4.0); }},
  };
  return all;
}

// Each element has another value, so that a write to the wrong place is visible. All values are exact in
// bf16.
Tensor numbered(const Shape& sizes, DType dtype) {
  std::vector<double> values(static_cast<std::size_t>(sizes.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i % 251);
  return tensor(values, kFloat64).reshape(sizes).to(dtype);
}

// Applies each operation to `slice(x)`, and checks every element of x.
void check_slice(const Shape& sizes, const std::function<Tensor(const Tensor&)>& slice) {
  for (const DType dtype : {kFloat32, kFloat64, kBFloat16})
    for (const Operation& op : operations()) {
      INFO(op.name << " on a slice of " << sizes.str() << " in " << dtype_name(dtype));
      const Tensor x = numbered(sizes, dtype), inside = zeros(sizes, kBool);
      slice(inside).fill_(1);
      op.in_place(slice(x));
      const Tensor before = numbered(sizes, dtype).to(kFloat64), got = x.to(kFloat64),
                   mask = inside.to(kFloat64);
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < sizes.numel(); ++i) {
        const double old = before.data<double>()[i];
        const double wanted = mask.data<double>()[i] != 0 ? op.value(old) : old;
        const double rounded = full({}, wanted, kFloat64).to(dtype).item();
        wrong += got.data<double>()[i] != rounded;
      }
      CHECK(wrong == 0);
    }
}

}  // namespace

TEST_CASE("an operation in place on columns of a matrix leaves the other columns as they are") {
  for (const std::int64_t rows : {1, 2, 7, 33})
    for (const auto& [start, length] :
         {std::pair<std::int64_t, std::int64_t>{0, 6}, {2, 6}, {1, 6}, {3, 1}, {0, 8}})
      check_slice({rows, 8}, [&, start = start, length = length](const Tensor& t) {
        return t.narrow(1, start, length);
      });
  check_slice({5, 40}, [](const Tensor& t) { return t.narrow(1, 3, 33); });
}

TEST_CASE(
    "an operation in place on rows, steps, or a transposed slice leaves all other elements as they are") {
  check_slice({9, 6}, [](const Tensor& t) { return t.narrow(0, 2, 5); });
  check_slice({9, 6}, [](const Tensor& t) { return t.slice(1, 1, 6, 2); });
  check_slice({9, 6}, [](const Tensor& t) { return t.slice(0, 1, 9, 3).narrow(1, 1, 4); });
  check_slice({9, 6}, [](const Tensor& t) { return t.t().narrow(0, 1, 4); });
  check_slice({4, 3, 5, 6}, [](const Tensor& t) { return t.narrow(2, 1, 3).narrow(3, 2, 3); });
  check_slice({4, 3, 5, 6}, [](const Tensor& t) { return t.permute({0, 2, 3, 1}).narrow(3, 1, 2); });
  check_slice({4, 3, 5, 6}, [](const Tensor& t) { return t.select(1, 1); });
}

TEST_CASE("threads that share an operation in place on a slice leave the other elements as they are") {
  const int before = get_num_threads();
  set_num_threads(3);
  check_slice({3001, 8}, [](const Tensor& t) { return t.narrow(1, 0, 6); });
  check_slice({3001, 8}, [](const Tensor& t) { return t.narrow(1, 1, 6); });
  set_num_threads(before);
}
