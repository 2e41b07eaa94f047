#pragma once
// The tensors of a training as a checkpoint names them, and who writes which boxes.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/distributed/checkpoint/internal/index.h"
#include "tapestry/distributed/checkpoint/sharded_checkpoint.h"

namespace tapestry::distributed::checkpoint {

/// Who writes a tensor that several writers have.
enum class Owner {
  boxes,   ///< each writer writes the boxes that it stores
  shared,  ///< all writers have equal values and share the work
  lowest   ///< the writer with the lowest number
};

/// A tensor of one writer.
struct Item {
  std::string name;
  DType dtype = DType::f32;
  Shape sizes;  ///< of the whole tensor
  Owner owner = Owner::lowest;
  nn::Boxes boxes = {};  ///< that `local` has
  Tensor local = {};
  std::uint32_t values =
      0;  ///< a checksum of `local`, if other writers should have the same; set by describe()
};

/// What one writer has.
struct WriterState {
  std::vector<Item> items;
  std::string optimizer, generators;
  std::vector<std::vector<std::string>> groups;
  bool scheduler = false;
  bool part_of_model = false;  ///< ShardedTraining::part_of_model
  std::vector<std::pair<std::string, std::string>> aliases;
};

/// "data=0/4 stage=1/2", or an empty text. Throws ValueError if there is no such place.
std::string place_text(const char* op, const std::optional<RandomPlace>& place);

/// The number of shards that this process writes if it is alone: the number of replicas if each of them has
/// a shard of its own, else 1.
int shards_of_process(const ShardedTraining& training);

/// Collects the tensors of one replica. Throws ValueError if a name is reserved, or if the state of the
/// optimizer cannot be divided as its parameters are. `op` is the name in the texts.
WriterState state_of(const char* op, const ShardedTraining& training, int replica);

/// The description of a writer's state without its values, for other ranks.
std::string describe(const WriterState& state);
WriterState parse_description(const std::string& text);

/// How the writers of a tensor of Owner::shared share the work.
enum class Share { evenly, by_lowest };

/// Decides who writes what: fills the index except for progress, files and checksums. Throws ValueError if
/// the states do not fit together.
Index plan(const char* op, const std::vector<WriterState>& writers, Share share);

}  // namespace tapestry::distributed::checkpoint
