#pragma once
// What a model is tuned on: conversations or text, in sequences of one length.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/apps/gpt/model_files.h"
#include "tapestry/data/text/documents.h"
#include "tapestry/data/text/packed_sequences.h"

namespace apps::gpt {

struct TuneDataOptions {
  std::vector<std::string> chats, text;  ///< files: JSON lines, or text
  std::vector<std::string> held_out;     ///< files of the same kind
  double held_out_part = 0.05;           ///< of the end of the documents, unless held_out is given
  std::int64_t length = 512;             ///< tokens of a sequence
  bool truncate = false;                 ///< cut conversations that are longer, instead of refusing them
  bool whole_text = false;               ///< count all tokens of conversations
  std::string date;                      ///< of chat templates that have one
};

struct TuneData {
  tapestry::data::PackedSequences train;
  std::optional<tapestry::data::PackedSequences> held_out;
  std::size_t documents = 0;  // of train
};

/// Reads the files with the tokenizer and the chat template of the model. Conversations stay whole; text is
/// cut into sequences without gaps. A single text is divided at a line, so that its end is held out. Throws
/// IoError with file and line for what cannot be read.
TuneData read_tune_data(const TuneDataOptions& options, const Pretrained& model);

/// Sequences for one call of the model.
struct TuneBatch {
  tapestry::data::PackedSequence sequences;  ///< (N, length)
  std::int64_t targets = 0;                  ///< those that count
  /// The options of the call. There is no mask if no sequence has a second document that counts: padding
  /// comes last, and no token sees what comes after it. With `divided`, the sequences are a rank's part of
  /// longer ones, and other ranks may have further documents: the options name all.
  tapestry::nn::TokenContext context(bool divided = false) const;
};
TuneBatch tune_batch(const tapestry::data::PackedSequences& data, const std::vector<std::int64_t>& indices);
/// The same of tensors (N, length) that exist already.
TuneBatch tune_batch_of(const tapestry::Tensor& ids, const tapestry::Tensor& targets,
                        const tapestry::Tensor& documents);

}  // namespace apps::gpt
