#pragma once
// Marks the memory of tensors that are one rank's part of a model, so that functions of tensors can refuse
// them by name.
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/core/storage.h"
#include "tapestry/core/tensor.h"

namespace tapestry::detail {

/// A second base of a storage's source, for tensors of which several ranks hold parts.
class DividedMemory {
 public:
  /// True if a change that this rank makes by itself would make the ranks' tensors differ.
  virtual bool is_divided() const = 0;

 protected:
  ~DividedMemory() = default;
};

/// The source of a storage that is never released: that of a shard, or of a parameter in a stage of a
/// pipeline over ranks. Views and detached tensors share the storage, and so the mark. Whoever destroys a
/// mark first removes it from its storages with set_source(nullptr).
class PartMemory final : public StorageSource, public DividedMemory {
 public:
  enum class Of : std::uint8_t { parameter, pipeline };
  /// `what` names the parameter or the stage.
  PartMemory(Of of, std::function<std::string()> what) : of_(of), what_(std::move(what)) {}
  void refill(Storage&) override {}
  std::string why_released(const Storage&) const override { return what_(); }
  bool is_divided() const override { return of_ == Of::parameter; }

  /// The mark of this kind in whose memory `t` lies, or null.
  static const PartMemory* find(const Tensor& t, Of of) {
    const auto* const mark = t.defined() ? dynamic_cast<const PartMemory*>(t.storage()->source()) : nullptr;
    return mark && mark->of_ == of ? mark : nullptr;
  }
  std::string name() const { return what_(); }

 private:
  const Of of_;
  const std::function<std::string()> what_;
};

/// Throws ValueError if `t` is a shard, for functions that fill a parameter. With one seed on all ranks, all
/// shards would get the same random numbers, and one rank's rows have another fan and other columns than the
/// parameter.
inline void check_all_rows(const char* op, const Tensor& t) {
  if (const PartMemory* const shard = PartMemory::find(t, PartMemory::Of::parameter)) [[unlikely]]
    fail("[", op, "] ", shard->name(), " is sharded, and a tensor of shape ", t.sizes(),
         " has one rank's rows of it; call ", op,
         " before the model is sharded, or while unshard() lasts, with one seed on all ranks");
}

}  // namespace tapestry::detail
