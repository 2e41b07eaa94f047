#include "tapestry/nn/layers/fold.h"

#include "tapestry/nn/internal/options_text.h"

namespace tapestry::nn {

namespace {
bool at_least(Pair p, std::int64_t least) { return p.h >= least && p.w >= least; }

template <class Options>
FoldParams params_of(const Options& o) {
  return {.kernel_size = o.kernel_size, .dilation = o.dilation, .padding = o.padding, .stride = o.stride};
}
// Checks the options that both layers have.
template <class Options>
const Options& checked_kernel(const char* name, const Options& o) {
  check(at_least(o.kernel_size, 1), "[", name, "] kernel_size must be positive but is (", o.kernel_size.h,
        ", ", o.kernel_size.w, "); set it");
  check(at_least(o.stride, 1) && at_least(o.dilation, 1), "[", name,
        "] stride and dilation must be positive but are (", o.stride.h, ", ", o.stride.w, ") and (",
        o.dilation.h, ", ", o.dilation.w, ")");
  check(at_least(o.padding, 0), "[", name, "] padding must not be negative but is (", o.padding.h, ", ",
        o.padding.w, ")");
  return o;
}
void add_common(detail::OptionsText& out, const FoldParams& p) {
  out.add("kernel_size", p.kernel_size)
      .add("dilation", p.dilation)
      .add("padding", p.padding)
      .add("stride", p.stride);
}
}  // namespace

Unfold::Unfold(const Options& o) : options(checked_kernel("Unfold", o)) {}
Tensor Unfold::forward(const Tensor& x) { return im2col(x, params_of(options)); }
std::string Unfold::options_text() const {
  detail::OptionsText out;
  add_common(out, params_of(options));
  return out.str();
}

Fold::Fold(const Options& o) : options(checked_kernel("Fold", o)) {
  check(at_least(o.output_size, 1), "[Fold] output_size must be positive but is (", o.output_size.h, ", ",
        o.output_size.w, "); set it");
}
Tensor Fold::forward(const Tensor& x) { return col2im(x, options.output_size, params_of(options)); }
std::string Fold::options_text() const {
  detail::OptionsText out;
  out.add("output_size", options.output_size);
  add_common(out, params_of(options));
  return out.str();
}

}  // namespace tapestry::nn
