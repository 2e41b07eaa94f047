#pragma once
// Sequences of one length for training, into which several documents are packed.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tapestry/data/dataset.h"
#include "tapestry/data/tokenizer/chat.h"

namespace tapestry::data {

/// Tensors i64 (length), in a batch (N, length). `documents` numbers the documents of a sequence, for
/// nn::TokenContext::documents.
struct PackedSequence {
  Tensor ids;
  Tensor targets;  ///< the token after each one, or -100 where the loss does not count
  Tensor documents;
};

struct PackOptions {
  std::int64_t length = 512;  ///< tokens of a sequence
  /// If true, documents follow one another without gaps, and the end of a sequence cuts them; the next
  /// sequence continues as a new document. If false, each document stays whole, and the rest of a sequence
  /// is padded.
  bool split = false;
  std::int64_t padding = 0;  ///< the id of padded tokens, which the loss does not count
};

/// A dataset of packed sequences. A document of n tokens takes n - 1 places, because its last token is a
/// target alone. Whole documents go to the sequence with the least room that is enough for them (best fit),
/// in the order of the list. Sequences depend on the list and the options alone, so a DataLoader's position
/// (DataLoader::state()) resumes a training run.
///
///   data::PackedSequences train(data::read_conversations("chats.jsonl", chat), {.length = 512});
///   data::DataLoader loader(train, {.batch_size = 4, .shuffle = true, .seed = 1});
///   for (data::PackedSequence& batch : loader) {
///     model(batch.ids, {.documents = batch.documents, .targets = batch.targets}).backward();
///   }
class PackedSequences : public Dataset<PackedSequence> {
 public:
  /// Throws ValueError if the length is not positive, a document and its answers have different lengths, a
  /// whole document is longer than length + 1 tokens, an id does not fit into 32 bits, or no sequence has a
  /// target that counts. Documents of fewer than two tokens are left out.
  PackedSequences(const std::vector<EncodedChat>& documents, PackOptions options = {});
  std::int64_t size() const override;
  PackedSequence get(std::int64_t index) const override;
  /// The number of targets that count, in all sequences.
  std::int64_t targets() const;

 private:
  struct Packed;
  std::shared_ptr<const Packed> packed_;
};

}  // namespace tapestry::data
