#include "tapestry/autograd/ops/grid_sample.h"

#include <limits>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/grid_sample.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::Grad;
using autograd::Op;
using autograd::raw_contiguous;
using kernels::GridShape;

const Op kGridSample("grid_sample", Grad::differentiable, kFloats);
const Op kAffineGrid("affine_grid", Grad::twice, kFloats);

MemoryFormat layout(const GridShape& s) {
  return s.channels_last ? MemoryFormat::channels_last : MemoryFormat::contiguous;
}

GridShape shape_of(const Tensor& x, const Tensor& grid, const GridSampleParams& params) {
  autograd::check_operands(kGridSample, x, grid);
  kGridSample.check_dtype(x.dtype());
  check<TypeError>(x.dtype() == grid.dtype(), "[grid_sample] the input is ", x.dtype(), " and the grid ",
                   grid.dtype(), "; convert one with to(dtype)");
  check(x.dim() == 4 || x.dim() == 5, "[grid_sample] an input of shape ", x.sizes(),
        "; expected (N, C, H, W) or (N, C, D, H, W)");
  GridShape s;
  s.dims = x.dim() - 2;
  check(grid.dim() == x.dim() && grid.sizes()[0] == x.sizes()[0] && grid.sizes()[s.dims + 1] == s.dims,
        "[grid_sample] a grid of shape ", grid.sizes(), " for an input of shape ", x.sizes(), "; expected (",
        x.sizes()[0], s.dims == 2 ? ", P, Q, 2)" : ", O, P, Q, 3)");
  check(params.mode != GridSampleMode::bicubic || s.dims == 2,
        "[grid_sample] mode bicubic takes images (N, C, H, W), got shape ", x.sizes(), "; use bilinear");
  s.n = x.sizes()[0], s.c = x.sizes()[1];
  s.points = 1;
  for (int d = 0; d < s.dims; ++d) s.points *= grid.sizes()[d + 1];
  s.channels_last = x.memory_format() == MemoryFormat::channels_last;
  std::int64_t stride = s.channels_last ? s.c : 1;
  for (int axis = 2, d = s.dims + 1; axis >= 0; --axis, --d) {
    const std::int64_t size = d >= 2 ? x.sizes()[d] : 1;
    check(size >= 1, "[grid_sample] an input of shape ", x.sizes(), " has images without pixels");
    check(size <= (std::int64_t{1} << 24), "[grid_sample] an input of shape ", x.sizes(),
          "; a dimension of an image may have 2^24 pixels, because f32 cannot count more");
    s.axes[axis] = {size, stride};
    stride *= size;
  }
  s.mode = static_cast<kernels::GridMode>(params.mode);
  s.padding = static_cast<kernels::GridPadding>(params.padding_mode);
  s.align_corners = params.align_corners;
  return s;
}

}  // namespace

Tensor grid_sample(const Tensor& x, const Tensor& grid, const GridSampleParams& params) {
  if (const autograd::Autocast cast(kGridSample, x, grid); cast)
    return grid_sample(cast(x), cast(grid), params);
  const GridShape s = shape_of(x, grid, params);
  Shape sizes{s.n, s.c};
  for (int d = 0; d < s.dims; ++d) sizes.push_back(grid.sizes()[d + 1]);
  const Tensor y = empty(sizes, {x.dtype(), x.device()}, layout(s));
  const Tensor dense = raw_contiguous(x, layout(s)), points = raw_contiguous(grid);
  if (y.numel() > 0)
    kernels::grid_sample(x.device(), x.dtype(), {.shape = s, .x = dense, .grid = points, .y = y});
  if (autograd::recording(x, grid))
    autograd::record(kGridSample, y, {&x, &grid},
                     [s, sizes = x.sizes(), points = autograd::save(points),
                      dense = autograd::save_if(grid, dense)](Backward& b) {
                       const Tensor g = raw_contiguous(b.grad(), layout(s)), at = b.saved(points);
                       if (b.needs(0)) {
                         const Tensor dx = empty(sizes, {g.dtype(), g.device()}, layout(s));
                         if (dx.numel() > 0)
                           kernels::grid_sample_backward_input(g.device(), g.dtype(),
                                                               {.shape = s, .grid = at, .dy = g, .dx = dx});
                         b.set(0, dx);
                       }
                       if (b.needs(1)) {
                         const Tensor dgrid = empty(at.sizes(), {g.dtype(), g.device()});
                         if (dgrid.numel() > 0)
                           kernels::grid_sample_backward_grid(
                               g.device(), g.dtype(),
                               {.shape = s, .x = b.saved(dense), .grid = at, .dy = g, .dgrid = dgrid});
                         b.set(1, dgrid);
                       }
                     });
  return y;
}

Tensor affine_grid(const Tensor& theta, const Shape& size, bool align_corners) {
  detail::check_defined(kAffineGrid.name, theta, "theta");
  kAffineGrid.check_dtype(theta.dtype());
  check(size.size() == 4 || size.size() == 5, "[affine_grid] size ", size,
        "; expected (N, C, H, W) or (N, C, D, H, W)");
  const int dims = size.size() - 2;
  check(theta.dim() == 3 && theta.sizes() == Shape({size[0], dims, dims + 1}),
        "[affine_grid] theta has shape ", theta.sizes(), ", expected ", Shape({size[0], dims, dims + 1}),
        " for size ", size);
  for (const std::int64_t n : size)
    check(n >= 1, "[affine_grid] size ", size, "; all sizes must be at least 1");
  const TensorOptions options(theta.dtype(), theta.device());
  // The coordinates of all points, with a last column of ones: (points, dims + 1).
  std::vector<Tensor> columns;
  Shape sizes;
  for (int d = 2; d < size.size(); ++d) sizes.push_back(size[d]);
  for (int d = dims - 1; d >= 0; --d) {
    const std::int64_t n = sizes[d];
    const double end = n == 1 ? 0 : align_corners ? 1 : static_cast<double>(n - 1) / static_cast<double>(n);
    Shape own = Shape::filled(dims, 1);
    own[d] = n;
    columns.push_back(linspace(-end, end, n, options).view(own).expand(sizes));
  }
  columns.push_back(ones(sizes, options));
  const Tensor base = stack(columns, -1).view({1, sizes.numel(), dims + 1});
  Shape result{size[0]};
  for (const std::int64_t n : sizes) result.push_back(n);
  result.push_back(dims);
  return matmul(base, transpose(theta, 1, 2)).view(result);
}

}  // namespace tapestry
