#pragma once
// The tensors of a module are slots. A slot holds one tensor per replica.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/core/tensor.h"
#include "tapestry/nn/layout.h"

namespace tapestry {

/// An empty base class. Because it lies in this namespace, C++ also looks here for the operators and
/// functions that a program calls with a slot: `p + 1` and `relu(p)`.
struct UsedLikeTensor {};

}  // namespace tapestry

namespace tapestry::nn {

/// A handle to a named slot of a module. It is used like the tensor in the slot. The slot holds one tensor
/// per replica, and the context's replica index selects the tensor. Copies of a handle share the slot, so an
/// optimizer's handles outlive the module. Assigning one module's handle to another ties their weights:
/// `head.weight = embedding.weight`. A handle without a slot is an undefined tensor, such as an absent bias.
class TensorSlot : public UsedLikeTensor {
 public:
  TensorSlot() = default;

  /// Returns the tensor of the context's replica; see Layout if the slot is divided. Throws IndexError if the
  /// slot has no such replica.
  const Tensor& tensor() const {
    if (!state_) return none();
    const auto replica = static_cast<std::size_t>(current_context().replica);
    if (replica >= state_->tensors.size() || !state_->tensors[replica].defined()) [[unlikely]]
      return other_tensor(static_cast<int>(replica));
    return state_->tensors[replica];
  }
  operator const Tensor&() const { return tensor(); }  // NOLINT: implicit: a slot is used like its tensor
  const Tensor* operator->() const { return &tensor(); }
  bool defined() const { return state_ != nullptr; }

  int replicas() const { return state_ ? static_cast<int>(state_->tensors.size()) : 0; }
  /// Returns the tensor of one replica. Throws IndexError.
  const Tensor& replica(int index) const;
  /// Replaces the tensor of one replica, for device moves and sharding. No other thread may use the slot at
  /// the same time.
  void set_replica(int index, const Tensor& tensor);
  /// Replaces the tensors of all replicas. Throws ValueError if the list is empty.
  void set_replicas(std::vector<Tensor> tensors);

  bool is_same(const TensorSlot& other) const { return state_ == other.state_; }
  /// A unique identifier of the slot while the slot exists.
  const void* id() const { return state_.get(); }

  /// How the slot is divided among ranks; null if it is not.
  const std::shared_ptr<Layout>& layout() const;
  /// Divides the slot, or divides it in another way. If `layout` is null, the slot is no longer divided, and
  /// set_replica() must set its tensors.
  void set_layout(std::shared_ptr<Layout> layout);
  /// Ends or begins the time in which the slot of a replica gives the stored tensor. An undefined tensor
  /// means the stored one. Only other replicas of the slot may be used by other threads at the same time.
  void set_full(int replica, const Tensor& full);
  /// True if the slot is sharded, and gives the full tensor of this replica now: in forward() of its unit,
  /// and while the unit is unsharded.
  bool is_full(int replica) const {
    return state_ && state_->layout && replica >= 0 && replica < replicas() &&
           state_->tensors[static_cast<std::size_t>(replica)].defined();
  }

  /// What optimizers call before they step this slot, or null. The replicas of DataParallel get equal
  /// gradients there.
  using BeforeStep = std::shared_ptr<const std::function<void()>>;
  const BeforeStep& before_step() const;
  void set_before_step(BeforeStep fn) const;

  /// True if the slot has no tensors of its own, and a function computes its tensor (Parameter::computed).
  bool is_computed() const { return state_ && state_->tensors.empty(); }

  // Methods of the tensor that programs often call on weights. `p->name()` calls any method of the tensor.
  DType dtype() const { return tensor().dtype(); }
  Device device() const { return tensor().device(); }
  const Shape& sizes() const { return tensor().sizes(); }
  const Shape& shape() const { return tensor().sizes(); }
  const Shape& strides() const { return tensor().strides(); }
  std::int64_t size(std::int64_t dim) const { return tensor().size(dim); }
  std::int64_t stride(std::int64_t dim) const { return tensor().stride(dim); }
  int dim() const { return tensor().dim(); }
  int ndim() const { return tensor().dim(); }
  std::int64_t numel() const { return tensor().numel(); }
  std::size_t nbytes() const { return tensor().nbytes(); }
  std::size_t element_size() const { return tensor().element_size(); }
  std::int64_t storage_offset() const { return tensor().storage_offset(); }
  bool is_floating_point() const { return tensor().is_floating_point(); }
  bool is_contiguous() const { return tensor().is_contiguous(); }
  std::string str() const { return tensor().str(); }
  template <class T>
  T* data() const {
    return tensor().data<T>();
  }
  template <class T = double>
  T item() const {
    return tensor().item<T>();
  }
  template <class T = double>
  std::vector<T> to_vector() const {
    return tensor().to_vector<T>();
  }
  bool is_leaf() const { return tensor().is_leaf(); }
  bool requires_grad() const { return tensor().requires_grad(); }
  Tensor grad() const { return tensor().grad(); }
  void set_grad(const Tensor& grad) const { tensor().set_grad(grad); }
  void zero_grad(bool set_to_none = true) const { tensor().zero_grad(set_to_none); }
  HookHandle register_hook(std::function<Tensor(const Tensor&)> hook) const {
    return tensor().register_hook(std::move(hook));
  }
  Tensor detach() const { return tensor().detach(); }
  Tensor clone() const { return tensor().clone(); }
  Tensor contiguous(MemoryFormat format = MemoryFormat::contiguous) const {
    return tensor().contiguous(format);
  }
  Tensor cpu() const { return tensor().cpu(); }
  Tensor cuda(int index = 0) const { return tensor().cuda(index); }
  Tensor to_float() const { return tensor().to_float(); }
  Tensor to_double() const { return tensor().to_double(); }
  Tensor half() const { return tensor().half(); }
  Tensor bfloat16() const { return tensor().bfloat16(); }
  Tensor to(const auto&... device_or_dtype) const { return tensor().to(device_or_dtype...); }
  Tensor t() const { return tensor().t(); }
  Tensor transpose(std::int64_t a, std::int64_t b) const { return tensor().transpose(a, b); }
  Tensor permute(const Dims& dims) const { return tensor().permute(dims); }
  Tensor view(const Shape& sizes) const { return tensor().view(sizes); }
  Tensor reshape(const Shape& sizes) const { return tensor().reshape(sizes); }
  Tensor flatten(std::int64_t start = 0, std::int64_t end = -1) const { return tensor().flatten(start, end); }
  Tensor squeeze(std::int64_t dim) const { return tensor().squeeze(dim); }
  Tensor unsqueeze(std::int64_t dim) const { return tensor().unsqueeze(dim); }
  Tensor expand(const Shape& sizes) const { return tensor().expand(sizes); }
  Tensor select(std::int64_t dim, std::int64_t index) const { return tensor().select(dim, index); }
  Tensor narrow(std::int64_t dim, std::int64_t start, std::int64_t length) const {
    return tensor().narrow(dim, start, length);
  }
  Tensor index_select(std::int64_t dim, const Tensor& index) const {
    return tensor().index_select(dim, index);
  }
  Tensor slice(std::int64_t dim, std::optional<std::int64_t> start = {}, std::optional<std::int64_t> end = {},
               std::int64_t step = 1) const {
    return tensor().slice(dim, start, end, step);
  }
  Tensor gather(std::int64_t dim, const Tensor& index) const { return tensor().gather(dim, index); }
  Tensor masked_fill(const Tensor& mask, const Scalar& value) const {
    return tensor().masked_fill(mask, value);
  }
  Tensor operator[](std::int64_t index) const { return tensor()[index]; }
  Tensor operator[](const Tensor& index) const { return tensor()[index]; }
  Tensor operator-() const { return -tensor(); }
  Tensor add(const auto& other) const { return tensor().add(other); }
  Tensor sub(const auto& other) const { return tensor().sub(other); }
  Tensor mul(const auto& other) const { return tensor().mul(other); }
  Tensor div(const auto& other) const { return tensor().div(other); }
  Tensor neg() const { return tensor().neg(); }
  Tensor sign() const { return tensor().sign(); }
  Tensor relu() const { return tensor().relu(); }
  Tensor clamp(std::optional<Scalar> low, std::optional<Scalar> high = {}) const {
    return tensor().clamp(low, high);
  }
  Tensor isnan() const { return tensor().isnan(); }
  Tensor isfinite() const { return tensor().isfinite(); }
  Tensor abs() const { return tensor().abs(); }
  Tensor exp() const { return tensor().exp(); }
  Tensor log() const { return tensor().log(); }
  Tensor sqrt() const { return tensor().sqrt(); }
  Tensor square() const { return tensor().square(); }
  Tensor pow(const Scalar& exponent) const { return tensor().pow(exponent); }
  Tensor tanh() const { return tensor().tanh(); }
  Tensor sigmoid() const { return tensor().sigmoid(); }
  Tensor softmax(std::int64_t dim) const { return tensor().softmax(dim); }
  bool equal(const Tensor& other) const { return tensor().equal(other); }
  bool allclose(const Tensor& other, double rtol = 1e-5, double atol = 1e-8, bool equal_nan = false) const {
    return tensor().allclose(other, rtol, atol, equal_nan);
  }
  Tensor mm(const Tensor& other) const { return tensor().mm(other); }
  Tensor matmul(const Tensor& other) const { return tensor().matmul(other); }
  Tensor sum(const Dims& dims = {}, bool keepdim = false) const { return tensor().sum(dims, keepdim); }
  Tensor mean(const Dims& dims = {}, bool keepdim = false) const { return tensor().mean(dims, keepdim); }
  Tensor std(const Dims& dims = {}, bool unbiased = true, bool keepdim = false) const {
    return tensor().std(dims, unbiased, keepdim);
  }
  Tensor var(const Dims& dims = {}, bool unbiased = true, bool keepdim = false) const {
    return tensor().var(dims, unbiased, keepdim);
  }
  Tensor amax(const Dims& dims = {}, bool keepdim = false) const { return tensor().amax(dims, keepdim); }
  Tensor amin(const Dims& dims = {}, bool keepdim = false) const { return tensor().amin(dims, keepdim); }
  Tensor any(const Dims& dims = {}, bool keepdim = false) const { return tensor().any(dims, keepdim); }
  Tensor all(const Dims& dims = {}, bool keepdim = false) const { return tensor().all(dims, keepdim); }
  Tensor argmax(std::optional<std::int64_t> dim = {}, bool keepdim = false) const {
    return tensor().argmax(dim, keepdim);
  }
  Tensor norm(double p = 2, const Dims& dims = {}, bool keepdim = false) const {
    return tensor().norm(p, dims, keepdim);
  }
  Tensor(max)() const { return (tensor().max)(); }
  Tensor(min)() const { return (tensor().min)(); }
  // In place. A parameter that requires a gradient can be changed under NoGradGuard only.
  const Tensor& copy_(const Tensor& source) const { return tensor().copy_(source); }
  const Tensor& fill_(const Scalar& value) const { return tensor().fill_(value); }
  const Tensor& zero_() const { return tensor().zero_(); }
  const Tensor& uniform_(double low = 0, double high = 1) const { return tensor().uniform_(low, high); }
  const Tensor& normal_(double mean = 0, double std = 1) const { return tensor().normal_(mean, std); }
  const Tensor& clamp_(std::optional<Scalar> low, std::optional<Scalar> high = {}) const {
    return tensor().clamp_(low, high);
  }
  const Tensor& lerp_(const Tensor& end, double weight) const { return tensor().lerp_(end, weight); }
  const Tensor& addcmul_(const Tensor& a, const Tensor& b, const Scalar& value = 1) const {
    return tensor().addcmul_(a, b, value);
  }
  const Tensor& addcdiv_(const Tensor& a, const Tensor& b, const Scalar& value = 1) const {
    return tensor().addcdiv_(a, b, value);
  }
  const Tensor& add_(const auto& other) const { return tensor().add_(other); }
  const Tensor& sub_(const auto& other) const { return tensor().sub_(other); }
  const Tensor& mul_(const auto& other) const { return tensor().mul_(other); }
  const Tensor& div_(const auto& other) const { return tensor().div_(other); }
  const Tensor& operator+=(const auto& other) const { return tensor() += other; }
  const Tensor& operator-=(const auto& other) const { return tensor() -= other; }
  const Tensor& operator*=(const auto& other) const { return tensor() *= other; }
  const Tensor& operator/=(const auto& other) const { return tensor() /= other; }

 protected:
  TensorSlot(std::string name, Tensor tensor);
  static TensorSlot computed_slot(std::string name, std::function<Tensor()> compute);

 private:
  friend class ComputedTensors;
  struct State {
    std::string name;  // for error messages
    std::vector<Tensor> tensors;
    std::function<Tensor()> compute = {};  // if there are no tensors
    std::shared_ptr<Layout> layout = {};   // then `tensors` has full tensors, while they exist
    BeforeStep before_step = {};
  };
  struct Computed;
  static Computed& computed_entry(const std::shared_ptr<State>& state);
  static const Tensor& none();
  const Tensor& other_tensor(int replica) const;
  [[noreturn]] void no_replica(int index) const;

  std::shared_ptr<State> state_;
};

/// A slot that holds a trained tensor.
class Parameter : public TensorSlot {
 public:
  Parameter() = default;
  /// Shares storage with `tensor`, or with a dense copy if `tensor` is a transposed or expanded view. The
  /// parameter is a leaf, and requires a gradient if its dtype is floating-point.
  Parameter(std::string name, const Tensor& tensor);
  /// Freezes (false) or unfreezes (true) the tensors of all replicas, and returns this handle. Throws
  /// TypeError if they are not floating-point and `on` is true, and ValueError while a sharded parameter is
  /// full (TensorSlot::is_full()).
  const Parameter& requires_grad_(bool on = true) const;
  /// A slot whose tensor `compute` returns, for example from other parameters. tensor() calls it on each
  /// read, or once during a call of the module (ComputedTensors). It must be safe to call on several threads.
  /// Such a slot has no replicas: a read computes the tensor of the context's replica. A reference from
  /// tensor() is valid until the same thread reads the slot again.
  static Parameter computed(std::string name, std::function<Tensor()> compute);
};

/// While an object of this class exists, reads on this thread and replica of the computed slots among `slots`
/// give the tensor that its constructor computed. A module creates one around each call of forward().
class ComputedTensors {
 public:
  explicit ComputedTensors(const std::vector<Parameter>& slots);
  ~ComputedTensors();
  ComputedTensors(const ComputedTensors&) = delete;
  ComputedTensors& operator=(const ComputedTensors&) = delete;

 private:
  const std::vector<Parameter>& slots_;
};

/// A slot that holds state without a gradient: running statistics, tables, masks.
class Buffer : public TensorSlot {
 public:
  Buffer() = default;
  Buffer(std::string name, const Tensor& tensor) : TensorSlot(std::move(name), tensor) {}
};

/// A module member with one value per replica, for state that forward() writes. Each thread sees the value of
/// its context's replica.
template <class T>
class PerReplica {
 public:
  PerReplica() : values_(new T[kMaxDevices]()) {}
  T& operator*() const { return values_[index()]; }
  T* operator->() const { return &values_[index()]; }

 private:
  static std::size_t index() {
    const int replica = current_context().replica;
    check<IndexError>(replica >= 0 && replica < kMaxDevices, "[PerReplica] replica ", replica,
                      " is out of range; there are at most ", kMaxDevices);
    return static_cast<std::size_t>(replica);
  }
  std::unique_ptr<T[]> values_;
};

}  // namespace tapestry::nn
