#pragma once
// A mesh gives the ranks of a job, or the devices of one process, coordinates along named axes. Each way of
// dividing the training works along one axis, and so ways can be combined.
//
//   auto world = distributed::init_process_group();  // 8 ranks
//   distributed::Mesh mesh(world, {{"pipeline", 2}, {"replicate", 2}, {"shard", -1}});
//   const distributed::Axis shard = mesh["shard"];
//   shard.group()->all_reduce(x);                                      // of the 2 ranks along `shard`
//   const distributed::Axis data = mesh.view("data", {"replicate", "shard"});
//   DistributedSampler sampler(samples, data.coordinate(), data.size());  // one of 4 parts of the samples
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tapestry/core/device.h"
#include "tapestry/distributed/comm/process_group.h"

namespace tapestry::distributed {

struct AxisSize {
  std::string name;  ///< letters, digits and underscores
  int size = 1;
  friend bool operator==(const AxisSize&, const AxisSize&) = default;
};

/// A handle to one axis of a mesh, or to a view that joins several axes. Copies are cheap, and remain valid
/// after the mesh was destroyed. Code that trains along an axis keeps the Axis and asks it for the group.
///
/// `local` numbers the members of this process. Over ranks the only member is 0. Over devices, member i is
/// devices[i] of the mesh. Another number throws IndexError.
class Axis {
 public:
  const std::string& name() const;
  int size() const;
  int locals() const;
  /// The member's place along this axis, from 0.
  int coordinate(int local = 0) const;
  bool over_devices() const;
  /// The group of the members whose coordinates differ from this member's along this axis alone. Its ranks
  /// are the coordinates along this axis. The group of an axis of size 1 does not communicate. Groups over
  /// devices are made by the first call, which may throw what make_process_group() throws.
  const std::shared_ptr<ProcessGroup>& group(int local = 0) const;
  /// The devices of the members of group(local), in order of their ranks. Empty over ranks.
  const std::vector<Device>& devices(int local = 0) const;

 private:
  friend class Mesh;
  struct State;
  explicit Axis(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  const State& at(int local) const;

  std::shared_ptr<const State> state_;
};

struct MeshOptions {
  /// If not empty, the mesh is over these devices of this process, and the world must be null.
  std::vector<Device> devices = {};
  /// Over devices: the options of the groups, and their transport: "nccl" between GPUs, or "local" through
  /// host memory. If empty, nccl is used if the library was built with it and each device is a GPU of its
  /// own. Groups of ranks have the options and the transport of the world.
  GroupOptions groups = {};
  std::string backend = {};
  /// The name of this rank's host; empty means the system's. Ranks with equal names are on one host.
  std::string host = {};
};

/// The axes of a job. Copies are handles to one mesh.
///
/// Ranks are ordered by host, then by rank, and laid out in this order along the axes, the last axis fastest.
/// So neighbours along the last axis are on one host if its size divides the ranks of each host. The host of
/// rank 0 comes first, so rank 0 keeps its number. If a group along an axis has ranks on several hosts, rank
/// 0 prints a warning on standard error. The outermost axis whose size is not 1 is expected to cross hosts,
/// so it gets no warning.
class Mesh {
 public:
  /// Makes a group for each axis. Collective over the ranks of `world`. The axes are listed outermost first.
  /// One size may be -1, which means the members that are left. Throws ValueError, on all ranks and before
  /// any group is made, if sizes do not multiply to the number of members, a name is invalid or occurs twice,
  /// or ranks pass different axes. Throws DeviceError for a device that does not exist.
  Mesh(std::shared_ptr<ProcessGroup> world, std::vector<AxisSize> axes, MeshOptions options = {});

  /// The axis or view of this name. Throws ValueError, with the list of names, if there is none.
  Axis operator[](std::string_view axis_or_view) const;
  bool has(std::string_view axis_or_view) const;
  /// Joins axes, named from the outermost to the innermost, to an axis with the product of their sizes, and
  /// gives it a name. It may join views too. Collective over the ranks of the mesh. If the name exists and
  /// means the same axes, apart from axes of size 1, returns what it names. Throws ValueError for an unknown
  /// or repeated axis, another order, or a name that means something else.
  Axis view(std::string name, const std::vector<std::string>& axes);
  /// The axes, outermost first, with their sizes.
  const std::vector<AxisSize>& axes() const;
  /// The number of ranks or devices.
  int size() const;
  /// The coordinates of a rank of world(), or of a device by its place in the list: one for each axis.
  std::vector<int> coordinates(int rank) const;
  /// The same as text, for messages and file names: "replicate=1 shard=0".
  std::string at(int rank) const;
  /// A table of ranks, hosts (or devices) and coordinates.
  std::string str() const;
  /// The group of all ranks in the order of the mesh. It is the given world if that has this order. Null for
  /// a mesh of devices.
  const std::shared_ptr<ProcessGroup>& world() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tapestry::distributed
