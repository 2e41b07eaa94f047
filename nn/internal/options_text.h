#pragma once
// Formats the options of a layer for printing: "in_features=784, out_features=10, bias=true".
#include <sstream>
#include <string>

#include "tapestry/autograd/ops/conv.h"
#include "tapestry/core/shape.h"

namespace tapestry::nn::detail {

class OptionsText {
 public:
  template <class T>
  OptionsText& add(const char* name, const T& value) {
    out_ << (first_ ? "" : ", ") << name << '=' << value;
    first_ = false;
    return *this;
  }
  OptionsText& add(const char* name, bool value) { return add(name, value ? "true" : "false"); }
  OptionsText& add(const char* name, const Shape& value) { return add(name, value.str()); }
  OptionsText& add(const char* name, Pair value) {
    if (value.h == value.w) return add(name, value.h);
    return add(name, "(" + std::to_string(value.h) + ", " + std::to_string(value.w) + ")");
  }
  OptionsText& add(const char* name, Triple value) {
    if (value == Triple(value.d)) return add(name, value.d);
    return add(name, "(" + std::to_string(value.d) + ", " + std::to_string(value.h) + ", " +
                         std::to_string(value.w) + ")");
  }
  /// Adds the option unless it has its default value.
  template <class T>
  OptionsText& add(const char* name, const T& value, const T& usual) {
    return value == usual ? *this : add(name, value);
  }
  std::string str() const { return out_.str(); }

 private:
  std::ostringstream out_;
  bool first_ = true;
};

}  // namespace tapestry::nn::detail
