#include "tapestry/core/tensor.h"

#include <algorithm>

#include "tapestry/core/tls_model.h"

namespace tapestry {
namespace {

// The size in bytes. Throws ValueError if it overflows 64 bits.
std::size_t checked_bytes(const char* op, const Shape& sizes, std::int64_t numel, DType dtype) {
  std::int64_t bytes = 0;
  check(!__builtin_mul_overflow(numel, static_cast<std::int64_t>(dtype_size(dtype)), &bytes), "[", op, "] a ",
        dtype, " tensor of shape ", sizes, " has more bytes than 64 bits can count; ask for smaller sizes");
  return static_cast<std::size_t>(bytes);
}

Tensor assemble(StorageRef storage, std::int64_t offset, DType dtype, const Shape& sizes, std::int64_t numel,
                const Shape& strides, bool inference) {
  return Tensor(Ref<TensorImpl>::adopt(
      new TensorImpl(std::move(storage), offset, dtype, sizes, numel, strides, inference)));
}

// True if the elements are dense in the dimension order order(0), order(1), ..., slowest first. Strides of
// dimensions of size 1 are ignored.
bool dense(const Shape& sizes, const Shape& strides, std::int64_t numel, auto order) {
  if (numel == 0) return true;
  std::int64_t expected = 1;
  for (int k = sizes.size() - 1; k >= 0; --k) {
    const int i = order(k);
    if (sizes[i] == 1) continue;
    if (strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

int real_dim(const char* op, std::int64_t dim, const Tensor& t) {
  check<IndexError>(t.dim() > 0, "[", op, "] dimension ", dim, " of a 0-d tensor, which has none");
  return wrap_dim(op, dim, t.dim());
}

// Each thread keeps the memory of destroyed TensorImpls in a free list for new ones, because malloc and free
// would be a fifth of the cost of a small operation. free_slots is how many more blocks the list may take.
#ifdef TAPESTRY_SANITIZED
constexpr int kMaxFree = 0;
#else
constexpr int kMaxFree = 1024;
#endif
struct FreeBlock {
  FreeBlock* next;
};
TAPESTRY_HOT_TLS thread_local constinit FreeBlock* free_list = nullptr;
TAPESTRY_HOT_TLS thread_local constinit int free_slots = 0;

FreeBlock* pop_free() {
  ++free_slots;
  return std::exchange(free_list, free_list->next);
}

// Allows the thread's free list to take blocks, when the thread first frees one. Returns false if the list is
// full or closed. The list is closed when the thread's destructors have run, because tensors may be destroyed
// later.
bool open_free_list() noexcept {
  struct AtExit {
    ~AtExit() {
      while (free_list) ::operator delete(pop_free());
      free_slots = 0;
    }
  };
  static thread_local constinit bool opened = false;
  if (std::exchange(opened, true)) return false;
  static thread_local AtExit at_exit;
  free_slots = kMaxFree;
  return free_slots > 0;
}

}  // namespace

// ---- TensorImpl ----

TensorImpl::TensorImpl(StorageRef memory, std::int64_t first, DType type, const Shape& shape,
                       std::int64_t elements, const Shape& steps, bool made_in_inference)
    : dtype(type),
      inference(made_in_inference),
      row_major(dense(shape, steps, elements, [](int k) { return k; })),
      device(memory->device()),
      storage(std::move(memory)),
      offset(first),
      numel(elements),
      sizes(shape),
      strides(steps) {}

TensorImpl::TensorImpl(StorageRef memory, DType type, const Shape& shape, std::int64_t elements,
                       bool made_in_inference)
    : dtype(type),
      inference(made_in_inference),
      row_major(true),
      device(memory->device()),
      storage(std::move(memory)),
      offset(0),
      numel(elements),
      sizes(shape),
      strides(contiguous_strides(shape)) {}

TensorImpl::~TensorImpl() {
  if (grad_record) grad_record->release();
}

void TensorImpl::destroy() const noexcept { delete this; }

void* TensorImpl::operator new(std::size_t bytes) { return free_list ? pop_free() : ::operator new(bytes); }

void TensorImpl::operator delete(void* p) noexcept {
  if (free_slots <= 0 && !open_free_list()) return ::operator delete(p);
  --free_slots;
  free_list = new (p) FreeBlock{free_list};
}

// ---- Tensor ----

std::int64_t Tensor::size(std::int64_t dim) const { return sizes()[real_dim("size", dim, *this)]; }
std::int64_t Tensor::stride(std::int64_t dim) const { return strides()[real_dim("stride", dim, *this)]; }

bool Tensor::is_channels_last() const {
  constexpr int order[] = {0, 2, 3, 1};
  return dim() == 4 && dense(sizes(), strides(), numel(), [&](int k) { return order[k]; });
}

MemoryFormat Tensor::memory_format() const {
  const TensorImpl& t = self();
  if (t.sizes.size() != 4 || t.numel == 0) return MemoryFormat::contiguous;
  const bool last = t.row_major ? t.strides[1] == 1 && t.strides == channels_last_strides(t.sizes) &&
                                      t.strides != contiguous_strides(t.sizes)
                                : is_channels_last();
  return last ? MemoryFormat::channels_last : MemoryFormat::contiguous;
}

void Tensor::throw_undefined() {
  fail(
      "[Tensor] the tensor is undefined and has no elements, shape or dtype; pass a defined tensor, or check "
      "defined() first");
}

std::int64_t Tensor::truncated(const Scalar& value) {
  if (!value.is_real()) return value.to_int();
  const double v = value.to_double();
  if (!(v >= -0x1p63 && v < 0x1p63)) throw_does_not_fit(value);
  return static_cast<std::int64_t>(v);
}

void Tensor::throw_does_not_fit(const Scalar& value) {
  const std::string text = value.is_real() ? concat({value.to_double()}) : concat({value.to_int()});
  fail("[item] the requested integer type cannot hold ", text, "; request a double or a wider integer type");
}

void Tensor::throw_wrong_dtype(DType asked) const {
  fail<TypeError>("[Tensor::data] the elements are ", dtype(), ", not ", asked,
                  "; convert with .to(), or request ", dtype());
}

void* Tensor::no_data() const {
  const Storage& storage = *self().storage;
  if (storage.is_released())
    fail("[Tensor::data] a tensor of shape ", sizes(), " has no elements now: ",
         storage.source() ? storage.source()->why_released(storage) : "its memory was released");
  return nullptr;
}

Tensor empty(const Shape& sizes, const TensorOptions& options, MemoryFormat format) {
  const Context& context = current_context();
  const DType dtype = options.dtype.value_or(DType::f32);
  const std::int64_t numel = checked_numel("empty", sizes);
  StorageRef storage =
      Storage::allocate(options.device.value_or(context.device), checked_bytes("empty", sizes, numel, dtype));
  Tensor t = format == MemoryFormat::contiguous
                 ? Tensor(Ref<TensorImpl>::adopt(
                       new TensorImpl(std::move(storage), dtype, sizes, numel, context.inference)))
                 : assemble(std::move(storage), 0, dtype, sizes, numel, channels_last_strides(sizes),
                            context.inference);
  if (options.requires_grad) t.set_requires_grad();
  return t;
}

Tensor from_blob(void* data, const Shape& sizes, const TensorOptions& options) {
  const DType dtype = options.dtype.value_or(DType::f32);
  const std::int64_t numel = checked_numel("from_blob", sizes);
  const std::size_t bytes = checked_bytes("from_blob", sizes, numel, dtype);
  check(data || numel == 0, "[from_blob] a null pointer for a tensor of shape ", sizes,
        "; pass the address of its elements");
  Tensor t(Ref<TensorImpl>::adopt(new TensorImpl(Storage::wrap(options.device.value_or(kCPU), data, bytes),
                                                 dtype, sizes, numel, current_context().inference)));
  if (options.requires_grad) t.set_requires_grad();
  return t;
}

namespace detail {

Tensor raw_view(const Tensor& base, const Shape& sizes, const Shape& strides, std::int64_t offset) {
  return assemble(base.storage(), offset, base.dtype(), sizes, sizes.numel(), strides,
                  base.impl()->inference);
}

Tensor make_tensor(StorageRef storage, DType dtype, const Shape& sizes, const Shape& strides,
                   std::int64_t offset) {
  return assemble(std::move(storage), offset, dtype, sizes, sizes.numel(), strides,
                  current_context().inference);
}

}  // namespace detail
}  // namespace tapestry
