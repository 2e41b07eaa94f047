#pragma once
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "tapestry/autograd/ops/rope.h"
#include "tapestry/nn/module.h"

namespace tapestry::nn {

struct RotaryEmbeddingOptions {
  using Layer = class RotaryEmbedding;
  std::int64_t dim = 0;             ///< features that are rotated, an even number; usually those of a head
  std::int64_t max_seq_len = 4096;  ///< positions are below this number
  double base = 10000;              ///< pair i turns by base^(-2 i / dim) per position
  bool interleaved = false;         ///< which features form a pair; see rotary_embedding()
  /// The angle of each of the dim / 2 pairs per position, in radians, in place of those of `base`:
  /// LlamaConfig::rope_frequencies() gives those of Llama 3.
  std::vector<double> frequencies = {};
};

/// Rotary position embeddings (Su et al. 2021) of queries or keys (..., L, dim): rotary_embedding() with
/// angles that are computed in f64 on the host, once, and kept for each device and dtype. The layer has no
/// parameters and no buffers, so to(DType::bf16) does not round its angles.
class RotaryEmbedding : public Callable<RotaryEmbedding> {
 public:
  using Options = RotaryEmbeddingOptions;
  /// Cosines and sines, as rotary_embedding() takes them.
  struct Angles {
    Tensor cos, sin;
  };
  /// Throws ValueError unless dim is even and positive and the number of frequencies is dim / 2.
  explicit RotaryEmbedding(const Options& options);

  /// Rotates by positions 0 to L - 1.
  Tensor forward(const Tensor& x) override { return forward(x, 0); }
  /// Rotates by positions first to first + L - 1, for decoding with a cache.
  Tensor forward(const Tensor& x, std::int64_t first);
  /// Rotates by these positions, integers (L), or (N, L) for x (N, ..., L, dim).
  Tensor forward(const Tensor& x, const Tensor& positions);

  /// The angles of positions first to first + count - 1, for inputs of this dtype on this device. Layers of
  /// one model may share them. Throws ValueError if a position is past max_seq_len.
  Angles angles(std::int64_t first, std::int64_t count, DType dtype, Device device);
  /// The angles (..., pairs) of integer positions (...). On a GPU a position past max_seq_len is reported
  /// when the host next waits for the work.
  Angles angles(const Tensor& positions, DType dtype);
  std::string options_text() const override;

  const Options options;

 private:
  Angles table(std::int64_t rows, DType dtype, Device device);

  std::vector<double> frequencies_;
  std::mutex mutex_;  // replicas and stages on other threads share the layer
  std::map<std::pair<std::string, DType>, Angles> tables_;
};

}  // namespace tapestry::nn
