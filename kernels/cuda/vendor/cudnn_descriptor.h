#pragma once
// The descriptors of cuDNN's backend API as objects. The compiler checks that the value of an attribute has
// the type that cuDNN expects.
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapestry/kernels/cuda/vendor/cudnn_api.h"

namespace tapestry::kernels::cuda::cudnn {

class Descriptor;

namespace detail {
template <class T>
constexpr Type attribute_type() {
  if constexpr (std::is_same_v<T, std::int64_t>) return Type::int64;
  else if constexpr (std::is_same_v<T, float>) return Type::float_;
  else if constexpr (std::is_same_v<T, bool>) return Type::boolean;
  else if constexpr (std::is_same_v<T, char>) return Type::char_;
  else if constexpr (std::is_same_v<T, void*>) return Type::void_ptr;
  else if constexpr (std::is_same_v<T, Handle>) return Type::handle;
  else if constexpr (std::is_same_v<T, DataType>) return Type::data_type;
  else if constexpr (std::is_same_v<T, PointwiseMode>) return Type::pointwise_mode;
  else if constexpr (std::is_same_v<T, ReductionOperator>) return Type::reduction_operator_type;
  else if constexpr (std::is_same_v<T, ConvolutionMode>) return Type::convolution_mode;
  else if constexpr (std::is_same_v<T, NanPropagation>) return Type::nan_propogation;
  else if constexpr (std::is_same_v<T, NumericalNote>) return Type::numerical_note;
  else if constexpr (std::is_same_v<T, Heuristic>) return Type::heur_mode;
  else static_assert(sizeof(T) == 0, "cuDNN has no attributes of this type");
}
}  // namespace detail

/// Owns one descriptor. All functions throw CudnnError when cuDNN refuses the call.
class Descriptor {
 public:
  explicit Descriptor(Kind kind);
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept
      : functions_(other.functions_), kind_(other.kind_), raw_(std::exchange(other.raw_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(functions_, other.functions_);
    std::swap(kind_, other.kind_);
    std::swap(raw_, other.raw_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  Kind kind() const { return kind_; }
  /// cudnnBackendDescriptor_t
  void* raw() const { return raw_; }

  template <Attribute attribute, class T>
  Descriptor& set(const T& value) {
    if constexpr (std::is_same_v<T, Descriptor>) {
      void* const raw = value.raw();
      return put<attribute, Type::backend_descriptor>(1, &raw);
    } else {
      return put<attribute, detail::attribute_type<T>()>(1, &value);
    }
  }
  template <Attribute attribute, class T>
  Descriptor& set_all(std::span<const T> values) {
    return put<attribute, detail::attribute_type<T>()>(static_cast<std::int64_t>(values.size()),
                                                       values.data());
  }
  template <Attribute attribute>
  Descriptor& set_descriptors(std::span<void* const> descriptors) {
    return put<attribute, Type::backend_descriptor>(static_cast<std::int64_t>(descriptors.size()),
                                                    descriptors.data());
  }
  /// cudnnBackendFinalize. Attributes can be set before it, and read after it.
  Descriptor& finalize();

  /// Returns the values of the attribute, but not more than `most`.
  template <Attribute attribute, class T>
  std::vector<T> get_all(std::int64_t most) const {
    std::vector<T> values(static_cast<std::size_t>(most));
    values.resize(static_cast<std::size_t>(get<attribute, detail::attribute_type<T>()>(most, values.data())));
    return values;
  }
  template <Attribute attribute, class T>
  T get_one() const {
    T value{};
    get<attribute, detail::attribute_type<T>()>(1, &value);
    return value;
  }
  /// Lets cuDNN fill the descriptors with values of the attribute, and returns how many it filled. The number
  /// of values that there are is the result for an empty span.
  template <Attribute attribute>
  std::int64_t fill(std::span<void*> descriptors) const {
    return get<attribute, Type::backend_descriptor>(static_cast<std::int64_t>(descriptors.size()),
                                                    descriptors.data());
  }

 private:
  template <Attribute attribute, Type type>
  Descriptor& put(std::int64_t count, const void* values) {
    static_assert(type_of(attribute) == type, "the attribute has another type");
    set_raw(attribute, type, count, values);
    return *this;
  }
  template <Attribute attribute, Type type>
  std::int64_t get(std::int64_t most, void* values) const {
    static_assert(type_of(attribute) == type, "the attribute has another type");
    return get_raw(attribute, type, most, values);
  }
  void set_raw(Attribute attribute, Type type, std::int64_t count, const void* values);
  std::int64_t get_raw(Attribute attribute, Type type, std::int64_t most, void* values) const;

  const Functions* functions_;
  Kind kind_;
  void* raw_ = nullptr;
};

}  // namespace tapestry::kernels::cuda::cudnn
