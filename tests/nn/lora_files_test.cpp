// PEFT's files, both ways, and 20 training steps of PEFT from the same weights (tests/golden/nn_lora.py).
#include <cmath>
#include <filesystem>
#include <sstream>

#include "tapestry/nn/models/gpt2.h"
#include "tapestry/nn/models/llama.h"
#include "tapestry/nn/models/lora.h"
#include "tests/nn/golden.h"
#include "tests/nn/small_models.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/source.h"

using namespace tapestry;
using namespace tapestry::test;
using tests::TempDir;

namespace {

std::unique_ptr<nn::LanguageModel> base_model(const std::string& name) {
  std::unique_ptr<nn::LanguageModel> net;
  if (name == "gpt2") net = std::make_unique<nn::Gpt2>(small_gpt2());
  else net = std::make_unique<nn::Llama>(small_llama());
  fill_as_language_models(*net, DType::f64);
  return net;
}
std::string recorded(const std::string& name) { return tests::source_path("tests/golden/nn_lora_" + name); }

// The state of a model by value, to see that nothing changed.
std::vector<std::pair<std::string, std::vector<double>>> snapshot(const nn::Module& net) {
  std::vector<std::pair<std::string, std::vector<double>>> all;
  for (const auto& [name, t] : net.state_dict()) all.emplace_back(name, values_of(t));
  return all;
}

}  // namespace

TEST_CASE("lora files: PEFT's adapters have PEFT's logits, and 20 steps have PEFT's losses") {
  const NnGolden golden("lora");
  for (const std::string name : {"llama", "gpt2"}) {
    INFO(name);
    const auto net = base_model(name);
    const nn::LoraOptions options = nn::load_lora(*net, recorded(name));
    CHECK(options.r == (name == "gpt2" ? 3 : 2));
    CHECK(options.use_rslora == (name == "gpt2"));
    const Tensor ids = labels({2, 12}, 4, 29);
    CHECK(difference((*net)(ids), golden.at(name + "/logits"), 1e-12) == "");
    optim::AdamW optimizer(net->parameters(), {.lr = 0.01});
    const std::vector<double>& wanted = golden.at(name + "/losses").values;
    for (std::size_t step = 0; step < wanted.size(); ++step) {
      const Tensor words = labels({4, 13}, static_cast<int>(step % 5), 29);
      optimizer.zero_grad();
      const Tensor loss = (*net)(words.narrow(1, 0, 12), {.targets = words.narrow(1, 1, 12)});
      loss.backward();
      optimizer.step();
      INFO("step " << step << ": " << loss.item() << ", PEFT " << wanted[step]);
      CHECK(std::abs(loss.item() - wanted[step]) <= 1e-9 * wanted[step]);
    }
    nn::merge_lora(*net);
    nn::remove_lora(*net);
    CHECK(difference((*net)(ids), golden.at(name + "/merged"), 1e-8) == "");
  }
}

TEST_CASE("lora files: a saved adapter loads with the same values, and has PEFT's names") {
  const TempDir dir;
  for (const std::string name : {"llama", "gpt2"}) {
    INFO(name);
    const auto net = base_model(name), other = base_model(name);
    nn::load_lora(*net, recorded(name));
    nn::save_lora(dir / name, *net, "someone/model");
    const SafetensorsFile ours(dir / name + "/adapter_model.safetensors"),
        theirs(recorded(name) + "/adapter_model.safetensors");
    REQUIRE(ours.entries().size() == theirs.entries().size());
    for (const auto& entry : theirs.entries()) CHECK(ours.read(entry.name).equal(theirs.read(entry.name)));
    CHECK(ours.metadata().at("format") == "pt");
    nn::load_lora(*other, dir / name);
    CHECK(snapshot(*other) == snapshot(*net));
    const std::string text = tests::read_file(dir / name + "/adapter_config.json");
    for (const char* part : {"\"peft_type\": \"LORA\"", "\"base_model_name_or_path\": \"someone/model\"",
                             "\"task_type\": \"CAUSAL_LM\"", "\"bias\": \"none\""})
      CHECK_THAT(text, ContainsSubstring(part));
    CHECK_THAT(text, ContainsSubstring(name == "gpt2" ? "\"fan_in_fan_out\": true" : "\"lora_alpha\": 6,"));
  }
  // Layers that are chosen by the model's class are written by path.
  const auto net = base_model("llama");
  nn::add_lora(*net, {.lora_alpha = 0.5, .target_modules = {"all-linear"}});
  nn::save_lora(dir / "all", *net);
  CHECK_THAT(tests::read_file(dir / "all/adapter_config.json"),
             ContainsSubstring("\"model.layers.1.mlp.up_proj\"") && ContainsSubstring("\"lora_alpha\": 0.5"));
  const auto other = base_model("llama");
  nn::load_lora(*other, dir / "all");
  CHECK(snapshot(*other) == snapshot(*net));
}

TEST_CASE("lora files: what does not fit is one error, and the model is as before") {
  const TempDir dir;
  const std::string config = tests::read_file(recorded("llama") + "/adapter_config.json");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = config;
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
  };
  Safetensors file = load_safetensors(recorded("llama") + "/adapter_model.safetensors");
  const auto refuses = [&](const std::string& json, const std::map<std::string, Tensor>& tensors,
                           const std::string& message, const char* model = "llama") {
    tests::write_file(dir / "adapter_config.json", json);
    NamedTensors list(tensors.begin(), tensors.end());
    save_safetensors(dir / "adapter_model.safetensors", list);
    const auto net = base_model(model);
    const auto before = snapshot(*net);
    INFO(message);
    CHECK_THROWS_AS(nn::load_lora(*net, dir.path().string()), IoError);
    CHECK_THROWS_WITH(nn::load_lora(*net, dir.path().string()), ContainsSubstring(message));
    CHECK(snapshot(*net) == before);
    for (const nn::Parameter& p : net->parameters()) CHECK(p->requires_grad());
  };
  const auto& good = file.tensors;
  refuses(with("\"r\": 2", "\"r\": 4"), good, "no adapter of rank 4 for this model: wrong shapes: ");
  refuses(with("\"r\": 2", "\"r\": 2.5"), good, "r is no rank from 1 to 65536");
  refuses(with("\"r\": 2", "\"r\": -1"), good, "r is no rank");
  refuses(with("\"r\": 2", "\"r\": \"2\""), good, "r is no number");
  refuses(with("\"lora_alpha\": 6", "\"lora_alpha\": 1e999"), good, "is not a JSON object");
  refuses(with("\"lora_dropout\": 0.0", "\"lora_dropout\": 1"), good, "lora_dropout is not in [0, 1)");
  refuses(with("\"bias\": \"none\"", "\"bias\": \"all\""), good, "bias is not \"none\"");
  refuses(with("\"use_rslora\": false", "\"use_rslora\": \"false\""), good,
          "use_rslora is not true or false");
  refuses(with("\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa\""), good, "init_lora_weights");
  refuses(with("\"peft_type\": \"LORA\"", "\"peft_type\": \"IA3\""), good, "peft_type is not \"LORA\"");
  refuses(with("\"q_proj\"", "\"query\""), good, "does not have: model.layers.0.self_attn.q_proj.lora_A");
  refuses(with("\"q_proj\"", "7"), good, "target_modules is no list of names");
  refuses(with("\"q_proj\"", "\"k_proj\", \"q_proj\""), good,
          "missing tensors: model.layers.0.self_attn.k_proj.lora_A.weight");
  refuses("[1, 2]", good, "is not a JSON object");
  refuses(std::string(500'000, '['), good, "is not a JSON object");
  refuses("{\"peft_type\": \"LORA\", \"a\": \"" + std::string(2 << 20, 'x') + "\"}", good, "larger than");
  refuses(config, good, "does not fit to the Gpt2: ", "gpt2");
  std::map<std::string, Tensor> tensors = good;
  const std::string name = "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight";
  tensors.at(name) = zeros({24, 2}, kInt64);
  refuses(config, tensors, "down_proj.lora_B.weight is of int64; adapters are floating-point");
  tensors.at(name) = zeros({2, 24});
  refuses(config, tensors,
          "wrong shapes: model.layers.1.mlp.down_proj.lora_B.weight is [2, 24] instead of [24, 2]");
  tensors.erase(name);
  refuses(config, tensors, "missing tensors: model.layers.1.mlp.down_proj.lora_B.weight");
  tensors = good;
  tensors["base_model.model.lm_head.lora_A.weight"] = zeros({2, 24});
  refuses(config, tensors, "tensors that this model does not have: lm_head.lora_A.weight");
  tensors = good;
  tensors["model.layers.1.mlp.down_proj.lora_B.weight"] = zeros({24, 2});
  refuses(config, tensors, "does not have: (without prefix) model.layers.1.mlp.down_proj.lora_B.weight");

  const auto net = base_model("llama");
  CHECK_THROWS_WITH(nn::load_lora(*net, dir / "absent"),
                    ContainsSubstring("adapter_config.json: does not exist"));
  nn::add_lora(*net);
  CHECK_THROWS_WITH(nn::load_lora(*net, recorded("llama")), ContainsSubstring("has adapters already"));
  std::filesystem::remove(dir / "adapter_model.safetensors");
  tests::write_file(dir / "adapter_config.json", config);
  CHECK_THROWS_AS(nn::load_lora(*base_model("llama"), dir.path().string()), IoError);
}

TEST_CASE("each key of adapter_config.json is honoured, known to be harmless, or refused by name") {
  const TempDir dir;
  std::filesystem::copy(recorded("llama") + "/adapter_model.safetensors", dir / "adapter_model.safetensors");
  const std::string config = tests::read_file(recorded("llama") + "/adapter_config.json");
  const auto net = base_model("llama");
  // Loads the configuration with one more member. Returns the options that were read, or the text of the
  // error.
  const auto load = [&](const std::string& key, const std::string& value) -> std::string {
    const std::string text = config.substr(0, config.rfind('}')) + ", \"" + key + "\": " + value + "}";
    tests::write_file(dir / "adapter_config.json", text);  // of two members of one name the last one counts
    try {
      const nn::LoraOptions o = nn::load_lora(*net, dir.path().string());
      nn::remove_lora(*net);
      return concat({o.r, " ", o.lora_alpha, " ", o.lora_dropout, " ", o.use_rslora, " ", o.target_pattern,
                     " ", o.target_modules.size()});
    } catch (const IoError& error) {
      return error.what();
    }
  };
  struct Setting {
    std::string key, value;   // a value that asks for something
    std::string wanted = {};  // the error's text, if it is not the key's name and "is set"
  };
  const std::string before = load("peft_type", "\"LORA\"");
  const Setting honoured[] = {
      {"lora_alpha", "7", "2 7 0 0  3"},
      {"lora_dropout", "0.25", "2 6 0.25 0  3"},
      {"use_rslora", "true", "2 6 0 1  3"},
      {"target_modules", "\".*(q_proj|v_proj|down_proj)\"", "2 6 0 0 .*(q_proj|v_proj|down_proj) 0"},
      {"r", "4", "no adapter of rank 4"},
      {"peft_type", "\"ADALORA\"", "peft_type is not"},
      {"bias", "\"lora_only\"", "bias is not"},
      {"init_lora_weights", "\"pissa\"", "init_lora_weights is set to"}};
  // The members of PEFT's LoraConfig, those of older versions, and an invented one.
  const Setting refused[] = {{"use_dora", "true"},
                             {"use_qalora", "true"},
                             {"lora_bias", "true"},
                             {"modules_to_save", R"(["lm_head"])"},
                             {"rank_pattern", R"({"q_proj": 4})"},
                             {"alpha_pattern", R"({"q_proj": 4})"},
                             {"layers_to_transform", "0"},
                             {"layers_to_transform", "[1]"},
                             {"layer_replication", "[[0, 2], [1, 2]]"},
                             {"exclude_modules", R"(["q_proj"])"},
                             {"target_parameters", R"(["mlp.experts"])"},
                             {"trainable_token_indices", "[3]"},
                             {"alora_invocation_tokens", "[3]"},
                             {"megatron_config", R"({"hidden_size": 8})"},
                             {"arrow_config", R"({"top_k": 3})"},
                             {"corda_config", R"({"corda_method": "kpm"})"},
                             {"eva_config", R"({"rho": 2})"},
                             {"kasa_config", R"({"beta": 1})"},
                             {"lora_ga_config", R"({"scale": "stable"})"},
                             {"monteclora_config", R"({"num_samples": 8})"},
                             {"use_bdlora", R"({"nblocks": 2})"},
                             {"velora_config", R"({"scale": 1})"},
                             {"enable_lora", "[true, false, true]"},
                             {"a_made_up_setting", "0"},
                             {"a_made_up_setting", "\"x\""}};
  const Setting harmless[] = {{"base_model_name_or_path", "\"x\""},
                              {"revision", "\"x\""},
                              {"task_type", "\"CAUSAL_LM\""},
                              {"auto_mapping", R"({"parent_library": "x"})"},
                              {"peft_version", "\"9\""},
                              {"inference_mode", "true"},
                              {"fan_in_fan_out", "true"},
                              {"layers_pattern", "\"layers\""},
                              {"megatron_core", "\"x\""},
                              {"loftq_config", R"({"loftq_bits": 4})"},
                              {"ensure_weight_tying", "true"},
                              {"qalora_group_size", "8"},
                              {"runtime_config", R"({"ephemeral_gpu_offload": true})"},
                              {"merge_weights", "true"}};
  std::string known;
  for (const Setting& s : honoured) {
    CHECK_THAT(load(s.key, s.value), ContainsSubstring(s.wanted));
    known += "\"" + s.key + "\"";
  }
  for (const Setting& s : refused) {
    CHECK_THAT(load(s.key, s.value), ContainsSubstring(": " + s.key + " is set, which is not supported"));
    for (const char* nothing : {"null", "false", "[]", "{}"}) CHECK(load(s.key, nothing) == before);
    known += "\"" + s.key + "\"";
  }
  for (const Setting& s : harmless) {
    CAPTURE(s.key);
    CHECK(load(s.key, s.value) == before);
    known += "\"" + s.key + "\"";
  }
  std::istringstream lines(config);
  for (std::string line; std::getline(lines, line);)  // every member of PEFT's file has a row
    if (line.starts_with("  \"")) CHECK_THAT(known, ContainsSubstring(line.substr(2, line.find(':') - 2)));
}

TEST_CASE("lora files: mutated configurations load or are refused") {
  const TempDir dir;
  std::filesystem::copy(recorded("llama") + "/adapter_model.safetensors", dir / "adapter_model.safetensors");
  const std::string config = tests::read_file(recorded("llama") + "/adapter_config.json");
  const auto net = base_model("llama");
  tests::for_mutations<IoError>(config, [&](const std::string& text) {
    tests::write_file(dir / "adapter_config.json", text);
    nn::load_lora(*net, dir.path().string());
    nn::remove_lora(*net);
  });
  CHECK(nn::lora_adapters(*net).empty());
}
