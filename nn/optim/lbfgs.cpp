#include "tapestry/nn/optim/lbfgs.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/nn/internal/masters.h"
#include "tapestry/nn/internal/replica_devices.h"
#include "tapestry/nn/internal/stored.h"

namespace tapestry::optim {

namespace {

double dot(const Tensor& a, const Tensor& b) { return (a * b).sum().item(); }
double largest(const Tensor& t) { return t.numel() == 0 ? 0 : t.abs().amax().item(); }

std::string master_key(std::size_t parameter) { return concat({"state.", parameter, ".", kMaster}); }
Tensor f64_scalar(double value) { return scalar_tensor(value, {DType::f64, kCPU}); }

// Returns the minimum in [low, high] of the cubic through two points with these values and derivatives
// (Nocedal and Wright, equation 3.59), or the middle if the cubic has no minimum.
double cubic_minimum(double x1, double f1, double g1, double x2, double f2, double g2, double low,
                     double high) {
  const double d1 = g1 + g2 - 3 * (f1 - f2) / (x1 - x2), square = d1 * d1 - g1 * g2;
  if (!(square >= 0)) return (low + high) / 2;
  const double d2 = std::sqrt(square);
  const double at = x1 <= x2 ? x2 - (x2 - x1) * ((g2 + d2 - d1) / (g2 - g1 + 2 * d2))
                             : x1 - (x1 - x2) * ((g1 + d2 - d1) / (g1 - g2 + 2 * d2));
  return std::min(std::max(at, low), high);
}

}  // namespace

LBFGS::LBFGS(std::vector<Parameter> params, const Options& options) {
  add_param_group({std::move(params), options});
}

void LBFGS::check_options(std::size_t group) const {
  check(group == 0, "[LBFGS] a second parameter group was given; LBFGS has one group");
  const Options& o = options(group);
  check(o.lr >= 0, "[LBFGS] lr must not be negative but is ", o.lr);
  check(o.max_iter > 0, "[LBFGS] max_iter must be positive but is ", o.max_iter);
  check(o.max_eval >= 0, "[LBFGS] max_eval must not be negative but is ", o.max_eval);
  check(o.history_size > 0, "[LBFGS] history_size must be positive but is ", o.history_size);
}

void LBFGS::update_tensors(std::size_t, const nn::ReplicaDevice&, const std::vector<Update>&) {
  fail("[LBFGS] step() was called without a closure; call step(closure)");
}

void LBFGS::check_param(const Parameter& param) const {
  check(!param.layout(), "[LBFGS] a parameter of shape ", nn::whole_sizes(param),
        " is sharded, and each rank has some of its elements; LBFGS needs all of them. Train sharded "
        "parameters "
        "with AdamW, or use DistributedDataParallel");
  check(!nn::is_of_one_stage(param), "[LBFGS] a parameter of shape ", nn::whole_sizes(param),
        " belongs to one stage of a pipeline over ranks, and LBFGS needs the gradients of all stages. Train "
        "it with AdamW, or use a pipeline in one process");
}

// ---- parameters and gradients as one vector ----

// Replica 0 decides. Its parameters may be on several devices; the vector is on the device of the first one.
// A part is undefined if it is 0.
Tensor LBFGS::flat(const std::function<Tensor(const Tensor& param)>& part) const {
  const Tensor& first = params(0)[0].replica(0);
  const DType dtype = state_dtype(first.dtype());
  std::vector<Tensor> parts;
  for (const Parameter& p : params(0)) {
    const Tensor own = part(p.replica(0));
    const Shape size{p.replica(0).numel()};
    parts.push_back(own.defined() ? own.to(first.device(), dtype).reshape(size)
                                  : zeros(size, {dtype, first.device()}));
  }
  return cat(parts);
}

Tensor LBFGS::flat_grad() const {
  const Tensor all = flat([](const Tensor& param) { return param.grad(); });
  const double factor = options().maximize ? -grad_scale() : grad_scale();
  return factor == 1 ? all : all * factor;
}

Tensor LBFGS::flat_param() const {
  return flat([](const Tensor& param) { return param.detach(); });
}

// A bound of the error of (grad - prev_flat_grad) . s that comes from rounding the two gradients to f16 or
// bf16: half a unit in the last place of each element, at least 2^-25 for subnormal f16.
double LBFGS::rounding_of_product(const Tensor& s, const Tensor& grad) const {
  const Tensor size = grad.abs() + memory_.prev_flat_grad.abs(), step = s.abs();
  double bound = 0;
  std::int64_t at = 0;
  for (const Parameter& p : params(0)) {
    const Tensor& param = p.replica(0);
    const std::int64_t n = param.numel();
    if (is_low(param.dtype()) && n > 0) {
      const Tensor part = step.narrow(0, at, n);
      bound += dot(size.narrow(0, at, n), part) * (param.dtype() == DType::bf16 ? 0x1p-8 : 0x1p-11);
      if (param.dtype() == DType::f16) bound += part.sum().item() * 0x1p-24 * std::abs(grad_scale());
    }
    at += n;
  }
  return bound;
}

LBFGS::Point LBFGS::evaluate(const Closure& closure, Tensor* returned) {
  Tensor loss;
  {
    const EnableGradGuard grad_mode;
    loss = closure();
  }
  check(loss.defined() && loss.numel() == 1, "[LBFGS] the closure returned a loss of shape ",
        loss.defined() ? loss.sizes() : Shape(), "; return the loss as one number");
  ++memory_.func_evals;
  if (returned) *returned = loss;
  return {options().maximize ? -loss.item() : loss.item(), flat_grad()};
}

// ---- masters ----

void LBFGS::prepare_masters() {
  masters_.resize(params(0).size());
  for (std::size_t i = 0; i < masters_.size(); ++i) {
    const Tensor& param = params(0)[i].replica(0);
    Tensor& master = masters_[i];
    if (!is_low(param.dtype())) {
      master = {};
    } else if (master.defined() && master.sizes() == param.sizes()) {
      master = master.to(param.device());
      follow_parameter(master, param);
    } else {
      master = param.detach().to(DType::f32);
    }
  }
}

bool LBFGS::has_masters() const {
  return std::any_of(masters_.begin(), masters_.end(), [](const Tensor& t) { return t.defined(); });
}

// What a step changes: the master of the parameter if it has one.
Tensor LBFGS::value(std::size_t index) const {
  return masters_[index].defined() ? masters_[index] : params(0)[index].replica(0).detach();
}

// Rounds the master to the parameter, in all replicas.
void LBFGS::publish(std::size_t index) const {
  const Parameter& p = params(0)[index];
  for (int r = 0; r < p.replicas(); ++r) p.replica(r).detach().copy_(masters_[index]);
}

std::vector<Tensor> LBFGS::copy_params() const {
  std::vector<Tensor> values;
  for (std::size_t i = 0; i < params(0).size(); ++i) values.push_back(value(i).clone());
  return values;
}

void LBFGS::set_params(const std::vector<Tensor>& values) const {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (masters_[i].defined()) {
      masters_[i].copy_(values[i]);
      publish(i);
      continue;
    }
    for (int r = 0; r < params(0)[i].replicas(); ++r) params(0)[i].replica(r).detach().copy_(values[i]);
  }
}

// Adds t * direction to the parameters of all replicas.
void LBFGS::move_params(double t, const Tensor& direction) const {
  const Tensor step = direction * t;
  std::int64_t at = 0;
  for (std::size_t i = 0; i < params(0).size(); ++i) {
    const Parameter& p = params(0)[i];
    const std::int64_t n = p.replica(0).numel();
    const Tensor part = step.narrow(0, at, n).reshape(p.replica(0).sizes());
    at += n;
    if (masters_[i].defined()) {
      masters_[i].add_(part.to(masters_[i].device(), DType::f32));
      publish(i);
      continue;
    }
    for (int r = 0; r < p.replicas(); ++r) {
      const Tensor own = p.replica(r).detach();
      own.add_(part.to(own.device(), own.dtype()));
    }
  }
}

// ---- the step ----

// Computes the direction -H grad by the two-loop recursion (Nocedal and Wright, algorithm 7.4).
void LBFGS::update_direction(const Tensor& grad) {
  Memory& m = memory_;
  if (m.n_iter == 1) {
    m.d = -grad;
    m.old_dirs.clear();
    m.old_stps.clear();
    m.ro.clear();
    m.H_diag = 1;
    return;
  }
  const Tensor y = grad - m.prev_flat_grad;
  const Tensor s = m.prev_flat_param.defined() ? flat_param() - m.prev_flat_param : m.d * m.t;
  const double ys = dot(y, s);
  if (ys > std::max(1e-10, has_masters() ? rounding_of_product(s, grad) : 0)) {
    if (static_cast<std::int64_t>(m.old_dirs.size()) >= options().history_size) {
      m.old_dirs.erase(m.old_dirs.begin());
      m.old_stps.erase(m.old_stps.begin());
      m.ro.erase(m.ro.begin());
    }
    m.old_dirs.push_back(y);
    m.old_stps.push_back(s);
    m.ro.push_back(1 / ys);
    m.H_diag = ys / dot(y, y);
  }
  const std::size_t count = m.old_dirs.size();
  std::vector<double> al(count);
  const Tensor q = -grad;
  for (std::size_t i = count; i-- > 0;) {
    al[i] = dot(m.old_stps[i], q) * m.ro[i];
    q.sub_(m.old_dirs[i] * al[i]);
  }
  m.d = q * m.H_diag;
  for (std::size_t i = 0; i < count; ++i)
    m.d.add_(m.old_stps[i] * (al[i] - dot(m.old_dirs[i], m.d) * m.ro[i]));
}

Tensor LBFGS::step(const Closure& closure) {
  tapestry::detail::refuse_in_capture("LBFGS", "the host reads losses and directions; step outside");
  const NoGradGuard no_grad;
  const Options o = options();
  for (const Parameter& p : params(0)) check_param(p);  // it may have been sharded since it was added
  Memory& m = memory_;
  const std::int64_t max_eval = o.max_eval > 0 ? o.max_eval : o.max_iter * 5 / 4;
  const std::int64_t calls_before = m.func_evals;
  prepare_masters();
  // The parameters may have moved since the last step.
  const Tensor& first = params(0)[0].replica(0);
  const auto move = [&](Tensor& t) {
    if (t.defined()) t = t.to(first.device(), state_dtype(first.dtype()));
  };
  move(m.d), move(m.prev_flat_grad), move(m.prev_flat_param);
  for (Tensor& t : m.old_dirs) move(t);
  for (Tensor& t : m.old_stps) move(t);
  Tensor first_loss;
  Point now = evaluate(closure, &first_loss);
  if (largest(now.grad) <= o.tolerance_grad) {
    count_step();
    return first_loss;
  }

  for (std::int64_t n = 1; n <= o.max_iter; ++n) {
    ++m.n_iter;
    update_direction(now.grad);
    m.prev_flat_grad = now.grad.clone();
    m.prev_flat_param = has_masters() ? flat_param() : Tensor();
    m.prev_loss = now.loss;
    m.t = m.n_iter == 1 ? std::min(1.0, 1 / now.grad.abs().sum().item()) * o.lr : o.lr;
    const double slope = dot(now.grad, m.d);
    if (slope > -o.tolerance_change) break;

    if (o.line_search_fn == LineSearch::strong_wolfe) {
      const LinePoint found = search(closure, now, m.t, slope, max_eval - (m.func_evals - calls_before));
      now = found;
      m.t = found.t;
      move_params(m.t, m.d);
    } else {
      move_params(m.t, m.d);
      // The loss after the last iteration is not needed.
      if (n != o.max_iter) now = evaluate(closure);
    }
    if (n == o.max_iter || m.func_evals - calls_before >= max_eval) break;
    if (largest(now.grad) <= o.tolerance_grad || largest(m.d * m.t) <= o.tolerance_change ||
        std::abs(now.loss - m.prev_loss) < o.tolerance_change)
      break;
  }
  count_step();
  return first_loss;
}

// Returns a point on the line from the current parameters along memory_.d that satisfies the strong Wolfe
// conditions. `t` is the first distance to try, and `slope` the derivative at the start. Leaves the
// parameters unchanged. The decisions are those of PyTorch's _strong_wolfe().
LBFGS::LinePoint LBFGS::search(const Closure& closure, const Point& start, double t, double slope,
                               std::int64_t max_ls) {
  constexpr double c1 = 1e-4, c2 = 0.9, tolerance_change = 1e-9;
  const Tensor d = memory_.d;
  const double d_norm = largest(d);
  const std::vector<Tensor> origin = copy_params();
  const auto at = [&](double distance) {
    move_params(distance, d);
    LinePoint p;
    static_cast<Point&>(p) = evaluate(closure);
    set_params(origin);
    p.t = distance;
    p.slope = dot(p.grad, d);
    return p;
  };
  const auto too_high = [&](const LinePoint& p) { return p.loss > start.loss + c1 * p.t * slope; };
  const auto flat_enough = [&](const LinePoint& p) { return std::abs(p.slope) <= -c2 * slope; };

  LinePoint origin_point;
  static_cast<Point&>(origin_point) = start;
  origin_point.slope = slope;

  // Find an interval that contains such a point.
  LinePoint previous = origin_point, now = at(t);
  LinePoint low = origin_point, high = now;
  std::int64_t iteration = 0;
  for (; iteration < max_ls; ++iteration) {
    if (too_high(now) || (iteration > 1 && now.loss >= previous.loss)) {
      low = previous;
      high = now;
      break;
    }
    if (flat_enough(now)) return now;
    if (now.slope >= 0) {
      low = previous;
      high = now;
      break;
    }
    const double next = cubic_minimum(previous.t, previous.loss, previous.slope, now.t, now.loss, now.slope,
                                      now.t + 0.01 * (now.t - previous.t), now.t * 10);
    previous = now;
    now = at(next);
    high = now;
  }
  if (high.loss < low.loss) std::swap(low, high);

  // Shrink the interval. `low` has the smaller loss of its two ends.
  bool little_progress = false;
  while (iteration < max_ls && std::abs(high.t - low.t) * d_norm >= tolerance_change) {
    const double left = std::min(low.t, high.t), right = std::max(low.t, high.t);
    double next = cubic_minimum(low.t, low.loss, low.slope, high.t, high.loss, high.slope, left, right);
    // A point close to an end makes little progress. The second such point in a row is moved inwards.
    const double margin = 0.1 * (right - left);
    if (std::min(right - next, next - left) < margin) {
      if (little_progress || next >= right || next <= left) {
        next = right - next < next - left ? right - margin : left + margin;
        little_progress = false;
      } else {
        little_progress = true;
      }
    } else {
      little_progress = false;
    }
    now = at(next);
    ++iteration;
    if (too_high(now) || now.loss >= low.loss) {
      high = now;
      if (high.loss < low.loss) std::swap(low, high);
      continue;
    }
    if (flat_enough(now)) return now;
    if (now.slope * (high.t - low.t) >= 0) high = low;
    low = now;
  }
  return low;
}

// ---- state ----

StateDict LBFGS::state_dict() const {
  const NoGradGuard no_grad;
  StateDict dict = Optimizer::state_dict();
  const Memory& m = memory_;
  if (m.func_evals == 0) return dict;
  const auto add = [&](const std::string& key, const Tensor& t) {
    dict.emplace_back("state.0." + key, t.clone());
  };
  add("func_evals", scalar_tensor(m.func_evals, {DType::i64, kCPU}));
  add("n_iter", scalar_tensor(m.n_iter, {DType::i64, kCPU}));
  for (std::size_t i = 0; i < masters_.size(); ++i)
    if (masters_[i].defined()) dict.emplace_back(master_key(i), masters_[i].clone());
  if (m.n_iter == 0) return dict;
  add("d", m.d);
  add("t", f64_scalar(m.t));
  add("H_diag", f64_scalar(m.H_diag));
  add("prev_flat_grad", m.prev_flat_grad);
  if (m.prev_flat_param.defined()) add("prev_flat_param", m.prev_flat_param);
  add("prev_loss", f64_scalar(m.prev_loss));
  add("ro", tensor(m.ro, Shape(static_cast<std::int64_t>(m.ro.size())), {DType::f64, kCPU}));
  for (std::size_t i = 0; i < m.old_dirs.size(); ++i) {
    add("old_dirs." + std::to_string(i), m.old_dirs[i]);
    add("old_stps." + std::to_string(i), m.old_stps[i]);
  }
  return dict;
}

std::vector<StateTensor> LBFGS::state_tensors(int replica) const {
  std::vector<StateTensor> all = Optimizer::state_tensors(replica);
  for (const auto& [key, t] : state_dict())
    if (key.starts_with("state.") && !key.ends_with(kMaster)) all.push_back({key, 0, false, t});
  for (std::size_t i = 0; i < masters_.size(); ++i)
    if (masters_[i].defined())
      all.push_back({master_key(i), static_cast<std::int64_t>(i), true, masters_[i]});
  return all;
}

void LBFGS::load_state_dict(const StateDict& dict) {
  const NoGradGuard no_grad;
  const Tensor& first = params(0)[0].replica(0);
  std::int64_t numel = 0;
  for (const Parameter& p : params(0)) numel += p.replica(0).numel();
  StateDict own, rest;
  for (const auto& entry : dict) (entry.first.starts_with("state.") ? own : rest).push_back(entry);
  const nn::StateDictIndex index(own);
  std::size_t used = 0;
  const auto take = [&](const std::string& key, std::int64_t count, DType dtype) {
    const Tensor* t = index.find("state.0." + key);
    check(t && t->defined() && t->numel() == count && is_floating(t->dtype()) == is_floating(dtype),
          "[load_state_dict] state.0.", key, " is missing or is not ", count, " values of ", dtype,
          ", and nothing was loaded; pass the state of an LBFGS over the same parameters");
    ++used;
    return *t;
  };
  const auto take_number = [&](const std::string& key) { return take(key, 1, DType::f64).item(); };
  const auto take_count = [&](const std::string& key) {
    const auto count = take(key, 1, DType::i64).item<std::int64_t>();
    check(count >= 0, "[load_state_dict] state.0.", key, " is ", count,
          ", and nothing was loaded; it cannot be negative");
    return count;
  };
  const auto take_vector = [&](const std::string& key) {
    const DType dtype = state_dtype(first.dtype());
    return take(key, numel, dtype).to(first.device(), dtype).clone();
  };
  Memory m;
  std::vector<Tensor> masters(params(0).size());
  if (!own.empty()) {
    for (std::size_t i = 0; i < masters.size(); ++i) {
      const Tensor& param = params(0)[i].replica(0);
      const Tensor* const t = index.find(master_key(i));
      // A state without masters begins with the parameters' values.
      if (!t || !t->defined() || !is_low(param.dtype())) continue;
      check(t->sizes() == param.sizes() && is_floating(t->dtype()), "[load_state_dict] ", master_key(i),
            " has shape ", t->sizes(), " and the parameter ", param.sizes(),
            ", and nothing was loaded; pass the state of an LBFGS over the same parameters");
      masters[i] = t->to(param.device(), DType::f32).clone();
      ++used;
    }
    m.func_evals = take_count("func_evals");
    m.n_iter = take_count("n_iter");
    if (m.n_iter > 0) {
      m.d = take_vector("d");
      m.t = take_number("t");
      m.H_diag = take_number("H_diag");
      m.prev_flat_grad = take_vector("prev_flat_grad");
      if (index.find("state.0.prev_flat_param")) m.prev_flat_param = take_vector("prev_flat_param");
      m.prev_loss = take_number("prev_loss");
      const Tensor* const ro = index.find("state.0.ro");
      const Tensor factors =
          take("ro", ro && ro->defined() ? ro->numel() : 0, DType::f64).to(kCPU, DType::f64).contiguous();
      m.ro.assign(factors.data<double>(), factors.data<double>() + factors.numel());
      for (std::size_t i = 0; i < m.ro.size(); ++i) {
        m.old_dirs.push_back(take_vector("old_dirs." + std::to_string(i)));
        m.old_stps.push_back(take_vector("old_stps." + std::to_string(i)));
      }
    }
    check(used == own.size(), "[load_state_dict] the state has ", own.size() - used,
          " unexpected tensors, and nothing was loaded; pass the state of an LBFGS over the same parameters");
  }
  Optimizer::load_state_dict(rest);  // checks before it changes anything
  memory_ = std::move(m);
  masters_ = std::move(masters);
}

}  // namespace tapestry::optim
