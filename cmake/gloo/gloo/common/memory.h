#pragma once
// Stands in for Gloo's header of this name, which Gloo's installed headers include but which Gloo does not install.
// It declares the three pointer classes with the members of the original, so that classes that contain them have the
// same size. Their functions are inside libgloo.
#include <memory>

namespace gloo {

template <class T>
class NonOwningPtr final {
  std::shared_ptr<T> ptr_;
};

template <class T>
class WeakNonOwningPtr final {
  std::weak_ptr<T> ptr_;
};

template <class T>
class ShareableNonOwningPtr final {
  std::shared_ptr<T> ptr_;
};

}  // namespace gloo
