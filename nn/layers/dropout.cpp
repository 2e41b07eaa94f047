#include "tapestry/nn/layers/dropout.h"

#include "tapestry/autograd/ops/dropout.h"
#include "tapestry/nn/internal/options_text.h"

namespace tapestry::nn {

namespace {
void check_probability(const char* layer, double p) {
  check(p >= 0 && p <= 1, "[", layer, "] p must lie in [0, 1] but is ", p);
}
}  // namespace

Dropout1d::Dropout1d(const Options& o) : options(o) { check_probability("Dropout1d", o.p); }
Tensor Dropout1d::forward(const Tensor& x) { return dropout1d(x, options.p, is_training()); }
std::string Dropout1d::options_text() const { return detail::OptionsText().add("p", options.p).str(); }

Dropout2d::Dropout2d(const Options& o) : options(o) { check_probability("Dropout2d", o.p); }
Tensor Dropout2d::forward(const Tensor& x) { return dropout2d(x, options.p, is_training()); }
std::string Dropout2d::options_text() const { return detail::OptionsText().add("p", options.p).str(); }

}  // namespace tapestry::nn
