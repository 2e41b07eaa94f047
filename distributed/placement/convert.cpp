#include "tapestry/distributed/placement/convert.h"

#include "tapestry/autograd/function.h"
#include "tapestry/autograd/ops/copy.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/placement/check.h"
#include "tapestry/nn/layout.h"

namespace tapestry::distributed {
namespace {

using Kind = Placement::Kind;

bool is_equal(Placement p) { return p.is(Kind::invariant) || p.is(Kind::replicated); }

// The ranks of an axis, and the size of the divided dimension of the whole tensor (or -1: equal parts).
struct Place {
  ProcessGroup* group;
  std::int64_t whole_size;

  int size() const { return group->size(); }
  nn::Region part(const Shape& whole, int dim, int rank) const {
    return nn::Region::whole(whole).part(dim, rank, size());
  }
  nn::Region my_part(const Shape& whole, int dim) const { return part(whole, dim, group->rank()); }
  // The shape of the whole tensor of which `x` is this rank's part of dimension `dim`.
  Shape whole_of(const Tensor& x, int dim) const {
    Shape whole = x.sizes();
    whole[dim] = whole_size < 0 ? x.size(dim) * size() : whole_size;
    const std::int64_t mine = my_part(whole, dim).sizes[dim];
    check(mine == x.size(dim), "[convert] dimension ", dim, " has ", x.size(dim), " elements, but rank ",
          group->rank(), " of ", size(), " has ", mine, " of ", whole[dim],
          "; pass the size of the whole dimension as whole_size");
    return whole;
  }
};

// Dimension `dim` comes first, and is padded to equal parts.
Tensor parts_first(const Tensor& x, int dim, std::int64_t rows) {
  const Tensor moved = x.movedim(dim, 0);
  if (moved.size(0) == rows) return moved.contiguous();
  Shape padded = moved.sizes();
  padded[0] = rows;
  const Tensor out = zeros(padded, TensorOptions(x.dtype(), x.device()));
  out.narrow(0, 0, moved.size(0)).copy_(moved);
  return out;
}

std::int64_t longest(const Place& place, const Shape& whole, int dim) {
  return place.part(whole, dim, 0).sizes[dim];
}

Tensor gathered(const Tensor& x, const Place& place, int dim) {
  const Shape whole = place.whole_of(x, dim);
  const std::int64_t rows = longest(place, whole, dim);
  const Tensor mine = parts_first(x, dim, rows);
  Shape all_sizes = mine.sizes();
  all_sizes[0] = rows * place.size();
  const Tensor all = empty(all_sizes, TensorOptions(x.dtype(), x.device()));
  place.group->all_gather(all, mine, "convert").wait();
  return all.narrow(0, 0, whole[dim]).movedim(0, dim).contiguous();  // only the last parts are padded
}

Tensor scattered_sum(const Tensor& x, const Place& place, int dim) {
  const std::int64_t rows = longest(place, x.sizes(), dim);
  const Tensor all = parts_first(x, dim, rows * place.size());
  Shape mine_sizes = all.sizes();
  mine_sizes[0] = rows;
  const Tensor mine = empty(mine_sizes, TensorOptions(x.dtype(), x.device()));
  place.group->reduce_scatter(mine, all, ReduceOp::sum, "convert").wait();
  return mine.narrow(0, 0, place.my_part(x.sizes(), dim).sizes[dim]).movedim(0, dim).contiguous();
}

// From parts of dimension `from` to parts of dimension `to`.
Tensor exchanged(const Tensor& x, const Place& place, int from, int to) {
  check(x.size(to) % place.size() == 0 && place.whole_size < 0, "[convert] dimension ", to, " has ",
        x.size(to), " elements, which ", place.size(),
        " ranks cannot divide equally; an all-to-all needs equal parts");
  const Tensor send = x.unflatten(to, {place.size(), -1}).movedim(to, 0).contiguous();  // (ranks, part...)
  const Tensor received = empty_like(send);
  place.group->all_to_all(received, send, "convert").wait();
  return received.movedim(0, from).flatten(from, from + 1).contiguous();
}

// A tensor placed as `from`, placed as `to`. The result may be `x`.
Tensor placed(const Tensor& x, const Place& place, Placement from, Placement to) {
  if (from.is(Kind::partial) && is_equal(to)) {
    const Tensor sum = x.clone();
    place.group->all_reduce(sum, ReduceOp::sum, "convert").wait();
    return sum;
  }
  if (from.is(Kind::partial) && to.is(Kind::sharded)) return scattered_sum(x, place, to.dim());
  if (is_equal(from) && to.is(Kind::sharded)) return place.my_part(x.sizes(), to.dim()).of(x).clone();
  if (from.is(Kind::sharded) && is_equal(to)) return gathered(x, place, from.dim());
  if (from.is(Kind::sharded) && to.is(Kind::partial)) {
    const Shape whole = place.whole_of(x, from.dim());
    const Tensor out = zeros(whole, TensorOptions(x.dtype(), x.device()));
    place.my_part(whole, from.dim()).of(out).copy_(x);
    return out;
  }
  if (from.is(Kind::sharded) && to.is(Kind::sharded) && from != to)
    return exchanged(x, place, from.dim(), to.dim());
  return x;
}

struct Conversion : autograd::Function<Conversion> {
  static constexpr const char* kName = "convert";
  struct Data {
    std::shared_ptr<ProcessGroup> group;
    Placement from, to;
    std::int64_t whole_size;
  };
  static Tensor forward(autograd::FunctionContext& ctx, const Tensor& x, const Data& data) {
    ctx.data = data;
    const Tensor y = placed(x, {data.group.get(), data.whole_size}, data.from, data.to);
    return y.is_same(x) ? x.clone() : y;
  }
  static std::vector<Tensor> backward(autograd::FunctionContext& ctx, const std::vector<Tensor>& grads) {
    const Data& data = std::any_cast<const Data&>(ctx.data);
    const Tensor dx = Conversion::apply(
        grads[0], Data{data.group, data.to.of_gradient(), data.from.of_gradient(), data.whole_size});
    return {dx, {}};
  }
};

bool is_conversion(Placement from, Placement to) {
  switch (from.kind()) {
    case Kind::invariant:
      return to.is(Kind::replicated) || to.is(Kind::varying) || to.is(Kind::sharded);
    case Kind::replicated:
      return to.is(Kind::varying) || to.is(Kind::sharded);
    case Kind::varying:
      return to.is(Kind::partial) || to.is(Kind::sharded);
    case Kind::partial:
      return is_equal(to) || to.is(Kind::sharded);
    case Kind::sharded:
      return true;
  }
  return false;
}

}  // namespace

Tensor convert(const Tensor& x, const Axis& axis, Placement from, Placement to,
               const ConvertOptions& options) {
  detail::check_defined("convert", x);
  check(!axis.over_devices(), "[convert] axis ", axis.name(),
        " is over devices of one process; use one over ranks");
  for (const Placement p : {from, to})
    check<IndexError>(!p.is(Kind::sharded) || (p.dim() >= 0 && p.dim() < x.dim()), "[convert] ", p.str(),
                      " of a tensor of ", x.dim(), " dimensions; choose one of its dimensions");
  const impl::CheckedConversion checked(x, axis, from, to);
  if (from == to || axis.size() == 1) return x;
  check(is_conversion(from, to), "[convert] ", from.str(), " cannot become ", to.str(),
        "; see the table in convert.h");
  if (to.is(Kind::sharded) && !from.is(Kind::varying) && !from.is(Kind::sharded))
    check(options.whole_size.value_or(x.size(to.dim())) == x.size(to.dim()) &&
              (options.whole_size || x.size(to.dim()) % axis.size() == 0),
          "[convert] dimension ", to.dim(), " has ", x.size(to.dim()), " elements, which ", axis.size(),
          " ranks cannot divide equally; pass this size as whole_size if unequal parts are meant");
  // An invariant tensor's copies become one rank's own by way of replicated ones: their gradients are summed.
  if (from.is(Kind::invariant) && to.is(Kind::varying)) to = Placement::replicated();
  return checked.result(
      Conversion::apply(x, Conversion::Data{axis.group(), from, to, options.whole_size.value_or(-1)}));
}

Placement Placement::of_gradient() const {
  if (kind_ == Kind::replicated) return partial();
  if (kind_ == Kind::partial) return replicated();
  return *this;
}

std::string Placement::str() const {
  switch (kind_) {
    case Kind::invariant:
      return "invariant";
    case Kind::replicated:
      return "replicated";
    case Kind::varying:
      return "varying";
    case Kind::partial:
      return "partial";
    case Kind::sharded:
      return "sharded(" + std::to_string(dim_) + ")";
  }
  return {};
}

}  // namespace tapestry::distributed
