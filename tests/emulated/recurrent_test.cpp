// The kernels of a recurrent step against the CPU's in f64: second blocks with a ragged end, arrays that are
// left out, and both dtypes.
#include "tapestry/kernels/cuda/recurrent.cuh"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

namespace {

constexpr RecurrentCell kCells[] = {RecurrentCell::lstm, RecurrentCell::gru, RecurrentCell::tanh,
                                    RecurrentCell::relu};
struct Size {
  std::int64_t rows, hidden;
};
// One element, part of a block, a whole block, and several blocks with a ragged last one.
constexpr Size kSizes[] = {{1, 1}, {3, 5}, {2, 64}, {3, 129}};

std::size_t count(std::int64_t n) { return static_cast<std::size_t>(n); }

// The arrays of both passes in dtype T. They begin with the same values in every dtype.
template <class T>
struct Arrays {
  RecurrentCell cell;
  std::int64_t rows, hidden, k;
  Block<T> gates, hidden_part, h, c, y, h_before, c_before, candidate, dy, dh, dc, dgates, dhidden_part;

  Arrays(RecurrentCell which, Size s)
      : cell(which),
        rows(s.rows),
        hidden(s.hidden),
        k(gates_of(which)),
        gates(numbers(rows * k * hidden, 1, 4)),
        hidden_part(numbers(rows * k * hidden, 2, 2)),
        h(numbers(rows * hidden, 3, 1)),
        c(numbers(rows * hidden, 4, 2)),
        y(count(rows * hidden)),
        h_before(count(rows * hidden)),
        c_before(count(rows * hidden)),
        candidate(count(rows * hidden)),
        dy(numbers(rows * hidden, 5, 1)),
        dh(numbers(rows * hidden, 6, 1)),
        dc(numbers(rows * hidden, 7, 1)),
        dgates(count(rows * k * hidden)),
        dhidden_part(count(rows * k * hidden)) {}

  bool lstm() const { return cell == RecurrentCell::lstm; }
  bool gru() const { return cell == RecurrentCell::gru; }
  RecurrentStepArgs forward(bool saves = true) const {
    RecurrentStepArgs a{.cell = cell, .rows = rows, .hidden = hidden, .gates = gates.data(), .h = h.data()};
    if (gru()) a.hidden_part = hidden_part.data();
    if (lstm()) a.c = c.data();
    if (k > 1) a.y = y.data();
    if (saves) a.h_before = h_before.data();
    if (saves && lstm()) a.c_before = c_before.data();
    if (saves && gru()) a.candidate = candidate.data();
    return a;
  }
  RecurrentStepBackwardArgs backward(bool with_dy) const {
    RecurrentStepBackwardArgs a{
        .cell = cell, .rows = rows, .hidden = hidden, .gates = gates.data(), .dh = dh.data()};
    if (lstm()) a.before = c_before.data(), a.dc = dc.data();
    if (gru())
      a.before = h_before.data(), a.candidate = candidate.data(), a.dhidden_part = dhidden_part.data();
    if (with_dy) a.dy = dy.data();
    a.dgates = dgates.data();
    return a;
  }
};

Values values(const Block<double>& b) { return Values(b.data(), b.data() + b.size()); }

// The values are below 16, and a formula has fewer than 32 roundings.
template <class T>
void check_all(const char* what, const Block<T>& got, const Block<double>& want) {
  // The backward step reads gates and states that were rounded to T.
  const Values error(want.size(), std::is_same_v<T, float> ? 512.0 : 0x1p21);
  check_close(what, got, values(want), error);
}

}  // namespace

TEST_CASE("recurrent kernels compute what the CPU computes in f64") {
  in_each_order([] {
    for_float_dtypes([]<class T>() {
      for (const RecurrentCell cell : kCells)
        for (const Size size : kSizes)
          for (const bool with_dy : {true, false}) {
            CAPTURE(static_cast<int>(cell), size.rows, size.hidden, with_dy);
            const Arrays<double> want(cell, size);
            const Arrays<T> got(cell, size);
            recurrent_step(kCPU, DType::f64, want.forward());
            gpu::launch_recurrent_step<T>({}, got.forward());
            recurrent_step_backward(kCPU, DType::f64, want.backward(with_dy));
            gpu::launch_recurrent_step_backward<T>({}, got.backward(with_dy));
            check_all("gates", got.gates, want.gates);
            check_all("h", got.h, want.h);
            check_all("c", got.c, want.c);
            check_all("y", got.y, want.y);
            check_all("h before", got.h_before, want.h_before);
            check_all("c before", got.c_before, want.c_before);
            check_all("candidate", got.candidate, want.candidate);
            check_all("dh", got.dh, want.dh);
            check_all("dc", got.dc, want.dc);
            check_all("dgates", got.dgates, want.dgates);
            check_all("dhidden part", got.dhidden_part, want.dhidden_part);
          }
    });
  });
}

TEST_CASE("recurrent kernels: without a backward pass nothing is saved, and NaN stays NaN") {
  for (const RecurrentCell cell : kCells) {
    CAPTURE(static_cast<int>(cell));
    const Arrays<float> saved(cell, {3, 50}), plain(cell, {3, 50});
    saved.gates[7] = plain.gates[7] = static_cast<float>(kNaN);
    gpu::launch_recurrent_step<float>({}, saved.forward());
    gpu::launch_recurrent_step<float>({}, plain.forward(false));
    int different = 0, nans = 0;
    for (std::size_t i = 0; i < saved.h.size(); ++i) {
      nans += std::isnan(plain.h[i]);
      different += plain.h[i] != saved.h[i] && !std::isnan(plain.h[i]);
    }
    CHECK(different == 0);
    CHECK(nans == 1);
    CHECK(std::isnan(plain.h[7]));
    CHECK(std::all_of(plain.h_before.data(), plain.h_before.data() + plain.h_before.size(),
                      [](float v) { return v == 0; }));
  }
}
