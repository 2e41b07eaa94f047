#pragma once
// How the tensor of a slot is divided among ranks. distributed::fully_shard() gives each of its parameters a
// Layout.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tapestry/core/tensor.h"
#include "tapestry/nn/rank_group.h"

namespace tapestry::nn {

/// A box of a tensor: of each dimension d, the elements [first[d], first[d] + sizes[d]). A tensor without
/// dimensions counts as one of shape [1], so that a rank may have none of it.
struct Region {
  Shape first, sizes;

  /// All of a tensor of this shape.
  static Region whole(const Shape& sizes);
  /// What rank `rank` of `ranks` gets if they divide dimension `dim` of this box: ceil(units / ranks)
  /// consecutive units of `unit` elements each. The last ranks get fewer, or none. Throws ValueError if
  /// `unit` is below 1.
  Region part(int dim, int rank, int ranks, std::int64_t unit = 1) const;
  /// The view of this box of a tensor that has all elements.
  Tensor of(const Tensor& tensor) const;
  /// "[2:4, 0:3]"
  std::string str() const;
  friend bool operator==(const Region&, const Region&) = default;
};

/// The boxes of a whole tensor that a rank has in one tensor, one after another along dimension 0. There is
/// one box or more.
struct Boxes {
  std::vector<Region> all;

  bool is_one() const { return all.size() == 1; }
  /// The shape of the tensor that has them.
  Shape sizes() const;
  /// Their elements of a tensor that has all elements: a view of one box, or a copy of several.
  Tensor of(const Tensor& whole) const;
  /// The view of box `i` of a tensor that has these boxes.
  Tensor view(const Tensor& part, std::size_t i) const;
  /// Copies the elements of a tensor that has these boxes to their places in `whole`.
  void copy(const Tensor& part, const Tensor& whole) const;
  /// "[2:4, 0:3] and [6:8, 0:3]"
  std::string str() const;
  friend bool operator==(const Boxes&, const Boxes&) = default;
};

/// One division of a parameter: the ranks of `group` divide dimension `dim` of what earlier cuts have left.
struct Cut {
  static constexpr int kCopied = -1;  ///< as `dim`: nothing is divided, each rank has an equal copy
  /// As `dim`: only the ranks `holders` have anything, namely equal copies. So the stages of a pipeline hold
  /// the parameters of a model.
  static constexpr int kHeld = -2;

  std::shared_ptr<const RankGroup> group;
  int dim = 0;
  std::vector<int> holders = {};  ///< of kHeld: one rank or more, in ascending order
  std::int64_t unit = 1;          ///< elements that stay together, such as the features of a head
  /// Of dimension 0: it has this many equal blocks, such as queries, keys and values, and the ranks divide
  /// each of them. No earlier cut may divide dimension 0.
  int blocks = 1;

  /// True on all ranks that have a copy but the first.
  bool is_repeated(int replica) const;
};

/// What part of a parameter this rank stores, who has the rest, and where the part is.
///
/// A slot's tensor may have two forms. The stored tensor, a leaf with this rank's part, exists always.
/// Optimizers, nn::clip_grad_norm_ and hooks see it. The full tensor is what forward computes with. Here it
/// is the stored tensor. Derived classes have another one, for which the ranks of the last cuts put their
/// boxes together, and which exists only while it is needed.
class Layout {
 public:
  /// `cuts` apply in their order: cuts that stay while the parameter is used (tensor parallelism) come first,
  /// and those that the full tensor undoes (fully_shard) last. stored[r] is what replica r stores. Throws
  /// ValueError if its shape is not that of boxes(r), or if a cut does not fit the shape.
  Layout(Shape whole_sizes, std::vector<Cut> cuts, std::vector<Tensor> stored);
  virtual ~Layout();
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;

  /// The shape of the whole tensor, which the ranks have together.
  const Shape& whole_sizes() const { return whole_sizes_; }
  const std::vector<Cut>& cuts() const { return cuts_; }
  /// The first cuts, as many as this, stay while the parameter is used. The full tensor undoes the others.
  std::size_t full_cuts() const { return full_cuts_; }
  /// The boxes of the whole tensor that this rank stores, and that its full tensor has. There are several
  /// only if a cut has blocks.
  Boxes boxes(int replica) const { return boxes_after(cuts_.size(), replica); }
  Boxes full_boxes(int replica) const { return boxes_after(full_cuts_, replica); }
  /// The only box that this rank stores. Throws ValueError if there are several.
  Region region(int replica) const;
  /// The number of ranks that have different boxes.
  int ranks() const;
  /// The groups over which norms, found_inf and counts are summed, one after another, so that they are those
  /// of the whole tensor. Ranks that have copies are among them; counts_here() says which of them adds its
  /// own.
  std::vector<const RankGroup*> divided() const;
  /// False on all ranks that have a copy but the first. Such a rank adds nothing to sums over divided().
  bool counts_here(int replica) const;

  virtual const Tensor& stored(int replica) const;
  /// Called when the slot is read while no full tensor of its own exists. Returns the stored tensor. Throws
  /// ValueError with the parameter's path if the calling thread is inside forward() of a model that needs
  /// another full tensor.
  virtual const Tensor& read(int replica) const { return stored(replica); }
  /// Replaces the stored tensor, for example by its copy on another device. The shape must stay.
  virtual void set_stored(int replica, const Tensor& tensor);
  /// The leaves to which a backward pass may give gradients.
  virtual std::vector<Tensor> leaves(int replica) const { return {stored(replica)}; }
  /// If the full tensor exists and was changed in place, this rank's part of it becomes the stored values.
  virtual void keep_changes(int replica);

  /// Collective over the ranks of the cuts that the full tensor undoes: copies what it has into `full`, of
  /// the shape of full_boxes() and on the stored tensor's device, and waits.
  virtual void gather_full(int replica, const Tensor& full);
  /// Collective over all ranks: the same for the whole tensor.
  void gather(int replica, const Tensor& whole);

 protected:
  /// For a class that keeps its stored tensors itself, and whose full tensor undoes all cuts after the first
  /// `full_cuts`.
  Layout(Shape whole_sizes, std::vector<Cut> cuts, std::size_t full_cuts);

 private:
  struct Mark;
  Boxes boxes_after(std::size_t cuts, int replica) const;
  void mark(const Tensor& stored);

  Shape whole_sizes_;
  std::vector<Cut> cuts_;
  std::size_t full_cuts_;
  std::vector<Tensor> stored_;
  std::unique_ptr<Mark> mark_;
};

}  // namespace tapestry::nn
