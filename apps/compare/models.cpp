#include "tapestry/apps/compare/models.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "tapestry/apps/common/basic_block.h"
#include "tapestry/apps/compare/optimizer.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/core/error.h"
#include "tapestry/core/generator.h"
#include "tapestry/distributed/context/context_parallel.h"
#include "tapestry/distributed/mesh/strategy_text.h"
#include "tapestry/nn/layers/moe.h"
#include "tapestry/nn/models/gpt2.h"

namespace apps::compare {

using namespace tapestry;

namespace {

constexpr std::int64_t kClasses = 10;

using Blocks = std::vector<Block>;

template <class... Parts>
void add(Blocks& blocks, const std::string& name, Parts&&... parts) {
  blocks.push_back({name, std::make_shared<nn::Sequential>(std::forward<Parts>(parts)...)});
}

// 25 MB of parameters and little arithmetic, so that communication dominates.
Blocks mlp(const Workload& w) {
  constexpr std::int64_t kWidth = 1024;
  Blocks blocks;
  add(blocks, "fc1", nn::Flatten::Options{},
      nn::Linear::Options{.in_features = 3 * w.image_size * w.image_size, .out_features = kWidth},
      nn::ReLU::Options{});
  for (int i = 2; i <= 4; ++i)
    add(blocks, "fc" + std::to_string(i), nn::Linear::Options{.in_features = kWidth, .out_features = kWidth},
        nn::ReLU::Options{});
  add(blocks, "fc5", nn::Linear::Options{.in_features = kWidth, .out_features = kClasses});
  return blocks;
}

nn::Conv2d::Options conv3x3(std::int64_t in, std::int64_t out) {
  return {.in_channels = in, .out_channels = out, .kernel_size = 3, .padding = 1};
}

// Much arithmetic and few parameters, so that computing dominates.
Blocks cnn(const Workload& w) {
  const std::int64_t left = w.image_size / 2 / 2;
  Blocks blocks;
  add(blocks, "conv1", conv3x3(3, 32), nn::ReLU::Options{});
  add(blocks, "conv2", conv3x3(32, 32), nn::ReLU::Options{}, nn::MaxPool2d::Options{.kernel_size = 2});
  add(blocks, "conv3", conv3x3(32, 64), nn::ReLU::Options{});
  add(blocks, "conv4", conv3x3(64, 64), nn::ReLU::Options{}, nn::MaxPool2d::Options{.kernel_size = 2});
  add(blocks, "fc1", nn::Flatten::Options{},
      nn::Linear::Options{.in_features = 64 * left * left, .out_features = 256}, nn::ReLU::Options{});
  add(blocks, "fc2", nn::Linear::Options{.in_features = 256, .out_features = kClasses});
  return blocks;
}

// The stem is a 3x3 convolution, as usual for small images.
Blocks resnet18(const Workload&) {
  Blocks blocks;
  add(blocks, "stem", BasicBlock::conv(3, 64, 1), nn::BatchNorm2d::Options{.num_features = 64},
      nn::ReLU::Options{});
  for (int stage = 1; stage <= 4; ++stage) {
    const std::int64_t out = 32 << stage, in = stage == 1 ? 64 : out / 2;
    const std::string name = "layer" + std::to_string(stage) + ".";
    blocks.push_back({name + "0", std::make_shared<BasicBlock>(in, out, stage == 1 ? 1 : 2)});
    blocks.push_back({name + "1", std::make_shared<BasicBlock>(out, out, std::int64_t{1})});
  }
  add(blocks, "head", nn::AdaptiveAvgPool2d::Options{.output_size = 1}, nn::Flatten::Options{},
      nn::Linear::Options{.in_features = 512, .out_features = kClasses});
  return blocks;
}

constexpr std::int64_t kWords = 1024;

// The first block of a GPT: (N, L) token ids give (N, L, width) features, by token and by position.
class Embeddings : public nn::Module, public nn::SequenceModule {
 public:
  Embeddings(std::int64_t length, std::int64_t width)
      : tokens_(add<nn::Embedding>("tokens", {.num_embeddings = kWords, .embedding_dim = width})),
        positions_(add<nn::Embedding>("positions", {.num_embeddings = length, .embedding_dim = width})) {}
  Tensor forward(const Tensor& ids) override {
    const nn::DividedSequence* const sequence = divided(nullptr);
    return tokens_(ids) + positions_(sequence ? sequence->positions(ids.size(1), ids.device())
                                              : arange(ids.size(1), TensorOptions(DType::i64, ids.device())));
  }

 private:
  nn::Embedding &tokens_, &positions_;
};

// A block of GPT-2 with a mixture of experts for its feed-forward network.
class MixtureBlock : public nn::Module {
 public:
  MixtureBlock(const nn::Gpt2Config& c, std::int64_t experts)
      : ln_1_(add<nn::LayerNorm>("ln_1", {.normalized_shape = {c.n_embd}})),
        attn_(add<nn::Gpt2Attention>("attn", c)),
        ln_2_(add<nn::LayerNorm>("ln_2", {.normalized_shape = {c.n_embd}})),
        mlp_(add<nn::MixtureOfExperts>("mlp", {.embed_dim = c.n_embd,
                                               .hidden_dim = 2 * c.n_embd,
                                               .num_experts = experts,
                                               .top_k = std::min<std::int64_t>(2, experts)})) {}
  Tensor forward(const Tensor& x) override {
    const Tensor y = x + attn_(ln_1_(x));
    return y + mlp_(ln_2_(y));
  }

 private:
  nn::LayerNorm& ln_1_;
  nn::Gpt2Attention& attn_;
  nn::LayerNorm& ln_2_;
  nn::MixtureOfExperts& mlp_;
};

// GPT-2's blocks. The defaults have GPT-2's width per head and its depth per width. The last layer has a
// weight of its own, because the first and the last stage of a pipeline are on different devices.
Blocks gpt(const Workload& w) {
  nn::Gpt2Config c;
  c.vocab_size = kWords, c.n_positions = w.length, c.n_embd = w.width, c.n_layer = 6, c.n_head = w.heads;
  c.n_inner = 4 * c.n_embd;
  c.embd_pdrop = c.attn_pdrop = c.resid_pdrop = 0;
  Blocks blocks;
  blocks.push_back({"embeddings", std::make_shared<Embeddings>(w.length, c.n_embd)});
  for (int i = 1; i <= c.n_layer; ++i)
    blocks.push_back({"block" + std::to_string(i),
                      w.experts > 0
                          ? std::shared_ptr<nn::Module>(std::make_shared<MixtureBlock>(c, w.experts))
                          : std::make_shared<nn::Gpt2Block>(c)});
  add(blocks, "head", nn::LayerNorm::Options{.normalized_shape = {c.n_embd}},
      nn::Linear::Options{.in_features = c.n_embd, .out_features = kWords, .bias = false});
  for (const Block& b : blocks) nn::init_language_model(*b.module);
  return blocks;
}

struct Model {
  const char* name;
  std::int64_t smallest_image;  // 0 if the model reads tokens
  Blocks (*make)(const Workload&);
};
constexpr Model kModels[] = {{"mlp", 1, mlp}, {"cnn", 4, cnn}, {"resnet18", 1, resnet18}, {"gpt", 0, gpt}};

}  // namespace

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Model& m : kModels) all.emplace_back(m.name);
    return all;
  }();
  return names;
}

bool reads_images(const Workload& w) { return w.model != "gpt"; }

std::vector<Block> make_blocks(const Workload& w) {
  for (const Model& m : kModels) {
    if (w.model != m.name) continue;
    check(w.image_size >= m.smallest_image, "[compare] ", w.model, " needs images of at least ",
          m.smallest_image, "x", m.smallest_image, ", got ", w.image_size, "x", w.image_size);
    manual_seed(w.seed);
    Blocks blocks = m.make(w);
    for (const Block& b : blocks) {
      b.module->to(w.dtype);
      b.module->eval();
    }
    return blocks;
  }
  fail("[compare] unknown model ", w.model, "; choose mlp, cnn, resnet18 or gpt");
}

std::shared_ptr<nn::Sequential> joined(const std::vector<Block>& blocks, std::size_t begin, std::size_t end) {
  auto all = std::make_shared<nn::Sequential>();
  for (std::size_t i = begin; i < end; ++i) all->push_back(nn::named(std::to_string(i), blocks[i].module));
  all->eval();
  return all;
}

std::shared_ptr<nn::Sequential> make_model(const Workload& w, Device device) {
  const std::vector<Block> blocks = make_blocks(w);
  const std::shared_ptr<nn::Sequential> model = joined(blocks, 0, blocks.size());
  model->to(device);
  return model;
}

std::vector<std::shared_ptr<nn::Sequential>> make_stages(const Workload& w,
                                                         const std::vector<Block>& blocks) {
  const int sum = std::accumulate(w.split.begin(), w.split.end(), 0);
  check(sum == static_cast<int>(blocks.size()), "[compare] the split has ", w.split.size(), " stages with ",
        sum, " blocks; ", w.model, " has ", blocks.size(), " blocks, for ", w.devices, " devices");
  std::vector<std::shared_ptr<nn::Sequential>> stages;
  std::size_t begin = 0;
  for (const int count : w.split) {
    check(count >= 1, "[compare] the split has a stage of ", count, " blocks; give each stage at least one");
    stages.push_back(joined(blocks, begin, begin + static_cast<std::size_t>(count)));
    begin += static_cast<std::size_t>(count);
  }
  return stages;
}

distributed::TensorPlan tensor_plan_of(const Workload& w) {
  using Style = distributed::TensorStyle;
  const std::string why = why_not_divided(w, "tensor=1");
  check(why.empty(), "[compare] ", why);
  // Every second layer of the MLP leaves whole features. The last one is small, and stays whole.
  if (reads_images(w))
    return {{{"0.1", Style::column}, {"1.0", Style::row}, {"2.0", Style::column}, {"3.0", Style::row}}};
  const std::vector<Block> blocks = make_blocks(w);
  distributed::TensorPlan plan = distributed::tensor_plan(*joined(blocks, 0, blocks.size()), 1);
  const std::string head = std::to_string(blocks.size() - 1);
  plan.rules.push_back({"0.tokens", Style::vocabulary});
  plan.rules.push_back({"0.positions", Style::enter});
  plan.rules.push_back({head + ".0", Style::residual});
  plan.rules.push_back({head + ".1", Style::gathered_column});
  return plan;
}

namespace {

std::string why_not_tensor(const Workload& w, int ranks, bool sequence) {
  if (w.model != "mlp" && w.model != "gpt")
    return "the axis tensor divides no convolutions, and " + w.model + " has them; choose mlp or gpt";
  if (sequence && reads_images(w)) return w.model + " has no sequence to divide; leave out sequence=1";
  if (sequence && w.experts > 0)
    return "the experts of gpt need whole sequences; leave out sequence=1, or --experts";
  if (!reads_images(w) && w.heads % ranks != 0)
    return concat({"gpt has ", w.heads, " heads, of which ", ranks,
                   " ranks would have unequal numbers; choose --heads that is a multiple of ", ranks});
  return "";
}

// `heads` is the number of heads that a rank of the axis `tensor` has.
std::string why_not_context(const Workload& w, int ranks, const std::string& attention, std::int64_t heads) {
  if (reads_images(w)) return "the axis context divides sequences, and " + w.model + " has none; choose gpt";
  using distributed::ContextAttention;
  ContextAttention form = distributed::context_attention_of(attention);
  if (form == ContextAttention::automatic)
    form = distributed::choose_attention({{heads, heads, /*always_causal=*/true}}, ranks, false);
  if (form == ContextAttention::all_to_all && heads % ranks != 0)
    return concat({"a rank of gpt has ", heads, " heads, which ", ranks,
                   " ranks cannot exchange equally; choose --heads that is a multiple, or attention=ring"});
  const std::int64_t chunks = form == ContextAttention::ring ? 2 * ranks : ranks;
  if (w.length % chunks != 0)
    return concat({ranks, " ranks cannot divide sequences of ", w.length, " tokens into ", chunks,
                   " equal parts; choose --length that is a multiple of ", chunks});
  return "";
}

std::string why_not_expert(const Workload& w, int ranks) {
  if (reads_images(w) || w.experts == 0)
    return "the axis expert divides mixtures of experts, and the model has none; choose gpt and --experts 8";
  const std::int64_t each = (w.experts + ranks - 1) / ranks;
  if (each * (ranks - 1) >= w.experts)
    return concat({"of ", w.experts, " experts, the last of ", ranks,
                   " ranks would have none; choose a larger --experts"});
  return "";
}

}  // namespace

std::string why_not_divided(const Workload& w, const std::string& layers) {
  std::int64_t heads = w.heads;
  const std::vector<distributed::AxisSpec> axes =
      layers.empty() ? std::vector<distributed::AxisSpec>() : distributed::parse_strategy(layers);
  for (std::size_t i = axes.size(); i-- > 0;) {  // from the innermost, `tensor`
    const distributed::AxisSpec& axis = axes[i];
    std::string why;
    if (axis.name == "tensor") why = why_not_tensor(w, axis.size, axis.option("sequence", "0") == "1");
    else if (axis.name == "context")
      why = why_not_context(w, axis.size, axis.option("attention", "auto"), heads);
    else why = why_not_expert(w, axis.size);
    if (!why.empty()) return why;
    if (axis.name == "tensor") heads /= axis.size;
  }
  return "";
}

std::vector<std::string> layers_of_meshes(const Workload& w, int devices) {
  std::vector<std::string> all;
  const auto add = [&](const std::string& layers, int size) {
    if (devices % size == 0 && (w.devices_per_host == 0 || size <= w.devices_per_host) &&
        why_not_divided(w, layers).empty())
      all.push_back(layers);
  };
  for (const char* const axis : {"tensor=", "context=", "expert="})
    for (const int size : {2, 4, 8}) add(axis + std::to_string(size), size);
  for (const char* const two : {"context=2,tensor=2", "expert=2,tensor=2", "expert=2,context=2"}) add(two, 4);
  return all;
}

Batch make_batch(const Workload& w) {
  manual_seed(w.seed + 1);
  if (!reads_images(w)) {
    const Tensor ids = randint(0, kWords, {w.batch_size, w.length + 1});
    return {ids.narrow(1, 0, w.length).contiguous(), ids.narrow(1, 1, w.length).contiguous()};
  }
  const Tensor images = randn({w.batch_size, 3, w.image_size, w.image_size});
  return {images.to(w.dtype), randint(0, kClasses, {w.batch_size})};
}

Tensor loss_of(const Tensor& outputs, const Tensor& targets) {
  return outputs.dim() == 2 ? cross_entropy(outputs, targets)
                            : cross_entropy(outputs.flatten(0, 1), targets.flatten());
}

planner::Model planner_model(const Workload& w) {
  const Batch batch = make_batch(w);
  return {
      .make_blocks = [w] { return make_blocks(w); },
      .inputs = batch.inputs,
      .targets = batch.targets,
      .loss = loss_of,
      .make_optimizer =
          [w](std::vector<nn::Parameter> parameters) { return make_optimizer(w, std::move(parameters)); },
      .tensor_plan = why_not_divided(w, "tensor=1").empty() ? tensor_plan_of(w) : distributed::TensorPlan(),
      .sequence_dim = reads_images(w) ? std::optional<int>() : 1};
}

}  // namespace apps::compare
