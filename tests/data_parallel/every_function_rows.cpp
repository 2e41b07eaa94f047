// The rows of every_function_threads_test.cpp.
#include <algorithm>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/data_parallel/divided_net.h"
#include "tests/support/files.h"

namespace tapestry::test::divided {
namespace {

Values numbers(double number) { return {{"number", {number}}}; }

nn::LlamaConfig tiny() {
  nn::LlamaConfig config;
  config.vocab_size = 11, config.hidden_size = 8, config.intermediate_size = 12;
  config.num_hidden_layers = 1, config.num_attention_heads = 2, config.num_key_value_heads = 2;
  config.head_dim = 4, config.max_position_embeddings = 16;
  return config;
}

// A language model in the mode of the case.
struct LanguageCase {
  explicit LanguageCase(const Case& c) {
    fill_by_formula(model);
    const DeviceList devices({Device("cpu:0"), Device("cpu:1")});
    if (c.mode() == Mode::fully_shard) fully_shard(model, {.group = c.group()});
    if (c.mode() == Mode::sharded_data_parallel)
      divided = std::make_shared<ShardedDataParallel<nn::Llama>>(model, devices);
    if (c.mode() == Mode::zero)
      divided =
          std::make_shared<DistributedDataParallel<nn::Llama>>(model, DdpOptions{.process_group = c.group()});
    if (c.mode() == Mode::data_parallel) divided = std::make_shared<DataParallel<nn::Llama>>(model, devices);
  }
  Values logits() {
    const NoGradGuard no_grad;
    return {{"logits", to_vector(model(tensor(std::vector<std::int64_t>{1, 4, 2}, {1, 3})))}};
  }
  nn::Llama model{tiny()};
  std::shared_ptr<void> divided;
};

Values of_words(const std::vector<std::int64_t>& words) {
  return {{"words", std::vector<double>(words.begin(), words.end())}};
}

void with_lora(nn::Module& net) {
  nn::add_lora(net, {.r = 2, .target_modules = {"fc"}});
  fill_by_formula(net);
}

// Gives the thread a generator of its own, because ranks are threads.
struct Seeded {
  Seeded() : guard(with(generator)) { generator.manual_seed(5); }
  static Context with(Generator& generator) {
    Context context = current_context();
    context.generator = &generator;
    return context;
  }
  Generator generator;
  ContextGuard guard;
};

// Fills the weight of each linear layer, or the kernel, from the same random numbers.
Row fill(const std::string& name, const std::function<void(const Tensor&)>& fn, bool kernel = false) {
  return {"init::" + name, "rrwww", [=](Case& c) {
            if (kernel) {
              const Seeded seeded;
              if (c.has_kernel()) fn(c.net().first.kernel);
            }
            for (const auto& [path, layer] : c.layers()) {
              const Seeded seeded;
              if (!kernel) fn(layer->weight);
            }
            if (c.mode() == Mode::data_parallel) c.backward();  // copies the first replica's changes
            return c.values();
          }};
}

// Two steps of an optimizer over the model.
template <class O>
Row step_of(const std::string& name, const std::string& verdicts, const typename O::Options& options = {}) {
  return {name, verdicts, [=](Case& c) {
            std::vector<nn::Parameter> parameters = c.parameters();
            if constexpr (std::is_same_v<O, optim::Muon>)
              std::erase_if(parameters, [](const nn::Parameter& p) { return p.dim() != 2; });
            O optimizer(parameters, options);
            for (int step = 0; step < 2; ++step) {
              optimizer.zero_grad();
              c.backward();
              if constexpr (std::is_same_v<O, optim::LBFGS>)
                optimizer.step([&] { return scalar_tensor(c.backward()); });
              else optimizer.step();
            }
            return c.values();
          }};
}

Row loads(const std::string& name, const std::string& verdicts,
          const std::function<void(nn::Llama&, const nn::ModelWeights&)>& load) {
  return {name, verdicts, [=](Case& c) {
            const tests::TempDir dir;
            nn::Llama saved(tiny());
            fill_by_formula(saved);
            nn::init::constant_(saved.lm_head->weight, 0.5);
            nn::save_language_model(dir / "m", saved);
            LanguageCase language(c);
            load(language.model, nn::ModelWeights(dir / "m"));
            return language.logits();
          }};
}

Row trains(const std::string& name) {
  return {name, "wwwww", [](Case& c) {
            for (int step = 0; step < 2; ++step) {
              c.optimizer().zero_grad();
              c.backward();
              c.optimizer().step();
            }
            return c.values();
          }};
}

Row averages(const std::string& name) {
  return {name, "wwwww", [](Case& c) {
            optim::AveragedModel ema(c.model(), {.avg_fn = optim::get_ema_avg(0.5)});
            for (int step = 0; step < 2; ++step) {
              c.optimizer().zero_grad();
              c.backward();
              c.optimizer().step();
              ema.update_parameters();
            }
            const auto scope = ema.use();
            return c.values();
          }};
}

}  // namespace

std::vector<Row> rows_of_functions() {
  using namespace nn::init;  // NOLINT

  return {
      fill("uniform_", [](const Tensor& t) { uniform_(t); }),
      fill("normal_", [](const Tensor& t) { normal_(t.detach()); }),
      fill("trunc_normal_", [](const Tensor& t) { trunc_normal_(t); }),
      fill("constant_", [](const Tensor& t) { constant_(t, 2); }),
      fill("zeros_", [](const Tensor& t) { zeros_(t); }),
      fill("ones_", [](const Tensor& t) { ones_(t); }),
      fill("eye_", [](const Tensor& t) { eye_(t); }),
      fill("kaiming_uniform_", [](const Tensor& t) { kaiming_uniform_(t); }),
      fill("kaiming_normal_", [](const Tensor& t) { kaiming_normal_(t); }),
      fill("xavier_uniform_", [](const Tensor& t) { xavier_uniform_(t); }),
      fill("xavier_normal_", [](const Tensor& t) { xavier_normal_(t); }),
      fill("orthogonal_", [](const Tensor& t) { orthogonal_(t); }),
      fill("sparse_", [](const Tensor& t) { sparse_(t, 0.5); }),
      fill(
          "dirac_", [](const Tensor& t) { dirac_(t); }, true),
      {"init::fans", "rrwww",
       [](Case& c) {
         Values all;
         for (const auto& [path, layer] : c.layers())
           all[path] = {static_cast<double>(fans(layer->weight).in),
                        static_cast<double>(fans(layer->weight).out)};
         return all;
       }},
      {"clip_grad_norm_", "wwwwr",
       [](Case& c) {
         c.backward();
         Values all{{"norm", to_vector(nn::clip_grad_norm_(c.parameters(), 0.1))}};
         c.optimizer().step();
         all.merge(c.values());
         return all;
       }},
      {"clip_grad_value_", "wwwww",
       [](Case& c) {
         c.backward();
         nn::clip_grad_value_(c.parameters(), 0.01);
         c.optimizer().step();
         return c.values();
       }},
      {"parameters_to_vector", "rrww-",
       [](Case& c) {
         return Values{{"vector", to_vector(nn::parameters_to_vector(c.parameters()))}};
       }},
      {"vector_to_parameters", "rrww-",
       [](Case& c) {
         nn::vector_to_parameters(Case::formula({5 * 4 + 5 + 18 + 15 + 3}, 3), c.parameters());
         return c.values();
       }},
      {"materialize", "wwwww",
       [](Case& c) {
         nn::materialize(c.model(), kCPU);
         return c.values();
       }},
      {"has_meta_tensors", "wwwww", [](Case& c) { return numbers(nn::has_meta_tensors(c.model())); }},
      {"generate", "wrww-",
       [](Case& c) {
         LanguageCase language(c);
         return of_words(
             nn::generate(language.model, std::vector<std::int64_t>{1, 2}, {.max_new_tokens = 3}));
       }},
      {"generate_batch", "wrww-",
       [](Case& c) {
         LanguageCase language(c);
         return of_words(nn::generate_batch(language.model, {{1, 2}, {3}}, {.max_new_tokens = 3}).at(1));
       }},
      {"init_language_model", "rrww-",
       [](Case& c) {
         LanguageCase language(c);
         const Seeded seeded;
         nn::init_language_model(language.model);
         return language.logits();
       }},
      {"hf_sources", "rwww-",
       [](Case& c) { return numbers(static_cast<double>(nn::hf_sources(LanguageCase(c).model).size())); }},
      {"save_language_model", "rw---",
       [](Case& c) {
         const tests::TempDir dir;
         nn::save_language_model(dir / "m", LanguageCase(c).model);
         return Values{};
       }},
      {"save_language_model_gguf", "rw---",
       [](Case& c) {
         const tests::TempDir dir;
         nn::save_language_model_gguf(dir / "m.gguf", LanguageCase(c).model);
         return Values{};
       }},
      loads("load_weights", "w-ww-",
            [](nn::Llama& model, const nn::ModelWeights& weights) { nn::load_weights(model, weights); }),
      loads(
          "load_packed_weights", "rrwr-",
          [](nn::Llama& model, const nn::ModelWeights& weights) { nn::load_packed_weights(model, weights); }),
      {"add_lora", "rrrrw",
       [](Case& c) {
         nn::add_lora(c.model(), {.r = 2, .target_modules = {"fc"}});
         return numbers(c.backward());
       }},
      {"lora_adapters", "wwwww",
       [](Case& c) {
         Values all;
         for (const auto& [path, adapter] : nn::lora_adapters(c.model())) all[adapter->path()] = {1};
         return all;
       },
       with_lora},
      {"merge_lora", "rrwrw",
       [](Case& c) {
         nn::merge_lora(c.model());
         return c.values();
       },
       with_lora},
      {"unmerge_lora", "rrwrw",
       [](Case& c) {
         nn::unmerge_lora(c.model());
         return c.values();
       },
       [](nn::Module& net) {
         with_lora(net);
         nn::merge_lora(net);
       }},
      {"remove_lora", "rrrrw",
       [](Case& c) {
         nn::remove_lora(c.model());
         c.model().requires_grad_();
         return numbers(c.backward());
       },
       with_lora},
      {"lora_state_dict", "rrwww",
       [](Case& c) {
         Values all;
         for (const auto& [name, t] : nn::lora_state_dict(c.model())) all[c.full_name(name)] = to_vector(t);
         return all;
       },
       with_lora},
      {"save_lora", "rrwww",
       [](Case& c) {
         const tests::TempDir dir;
         nn::save_lora(dir / "m", c.model());
         return Values{};
       },
       with_lora},
      {"load_lora_state_dict", "rrwww",
       [](Case& c) {
         nn::StateDict state;
         for (const auto& [path, adapter] : nn::lora_adapters(c.model()))
           state.emplace_back(path + ".lora_A.weight",
                              ones({2, adapter->A.layout() ? 4 : adapter->A.size(1)}, DType::f64)),
               state.emplace_back(path + ".lora_B.weight",
                                  ones({adapter->B.layout() ? 5 : adapter->B.size(0), 2}, DType::f64));
         nn::load_lora_state_dict(c.model(), state);
         if (c.mode() == Mode::data_parallel) c.backward();
         return c.values();
       },
       with_lora},
      {"load_lora", "rrrrw",
       [](Case& c) {
         const tests::TempDir dir;
         Net other;
         with_lora(other);
         nn::save_lora(dir / "m", c.part_of(other));
         nn::load_lora(c.model(), dir / "m");
         c.backward();
         return c.values();
       }},
      {"Module::to", "wrrrw",
       [](Case& c) {
         c.model().to(DType::f32);
         if (c.mode() == Mode::zero) c.backward();
         return c.values();
       }},
      {"Module::to_empty", "wrrrw",
       [](Case& c) {
         c.model().to_empty(kCPU);
         if (c.mode() == Mode::zero) c.backward();
         for (const auto& [name, p] : c.model().named_parameters())
           (p.layout() ? p.layout()->stored(0) : p.tensor()).detach().fill_(1);
         return c.values();
       }},
      {"Module::zero_grad", "wwwww",
       [](Case& c) {
         c.backward();
         c.model().zero_grad();
         c.backward();
         c.optimizer().step();
         return c.values();
       }},
      {"Module::requires_grad_", "wwwww",
       [](Case& c) {
         for (const auto& [path, layer] : c.layers()) {
           layer->requires_grad_(false);
           layer->weight.requires_grad_();
         }
         c.backward();
         c.optimizer().step();
         return c.values();
       }},
      {"Module::state_dict", "rwwww",
       [](Case& c) {
         Values all;
         for (const auto& [name, t] : c.model().state_dict()) all[c.full_name(name)] = to_vector(t);
         return all;
       }},
      {"Module::load_state_dict", "wwwww",
       [](Case& c) {
         Net other;
         nn::StateDict whole;
         for (const auto& [name, t] : c.part_of(other).named_parameters())
           whole.emplace_back(name, Case::formula(t.sizes(), 7));
         c.model().load_state_dict(whole);
         return c.values();
       }},
      {"Optimizer::load_state_dict", "wwwww",
       [](Case& c) {
         Net other;
         optim::SGD saved(c.part_of(other).parameters(), {.lr = 0.2, .momentum = 0.9});
         for (const nn::Parameter& p : saved.parameters()) p.set_grad(Case::formula(p.sizes(), 8));
         saved.step();
         c.optimizer().load_state_dict(saved.state_dict());
         c.backward();
         c.optimizer().step();
         return c.values();
       }},
      averages("AveragedModel::AveragedModel"),
      averages("AveragedModel::update_parameters"),
      averages("AveragedModel::use"),
      {"AveragedModel::load_state_dict", "wwwww",
       [](Case& c) {
         Net other;
         optim::AveragedModel saved(c.part_of(other));
         saved.update_parameters();
         optim::AveragedModel ema(c.model());
         ema.load_state_dict(saved.state_dict());
         c.model().requires_grad_(false);
         const auto scope = ema.use();
         return c.values();
       }},
      {"Module::summary", "wwww-",
       [](Case& c) {
         const std::string text = c.model().summary();
         const std::size_t at = text.find("Parameters: ");
         Values all;
         all[c.model().path()] = {std::stod(text.substr(at + 12))};
         return all;
       }},
      {"call", "wrwww",
       [](Case& c) {
         if (c.mode() == Mode::stage) return numbers(c.backward());
         return numbers(
             mse_loss(nn::call(c.net(), Case::formula({4, 4}, 1)), Case::formula({4, 3}, 2)).item());
       }},
      step_of<optim::SGD>("SGD::SGD", "wwrww", {.lr = 0.1, .momentum = 0.9}),
      step_of<optim::Muon>("Muon::Muon", "rrrww", {.lr = 0.1}),
      step_of<optim::LBFGS>("LBFGS::LBFGS", "rrrwr", {.lr = 0.1, .max_iter = 2}),
      trains("Optimizer::step"),
      trains("Optimizer::zero_grad"),
      {"OptimizerWith::add_param_group", "wwrww",
       [](Case& c) {
         std::vector<nn::Parameter> all = c.parameters();
         const nn::Parameter last = all.back();
         all.pop_back();
         optim::SGD optimizer(all, {.lr = 0.1});
         optimizer.add_param_group({{last}, {.lr = 0.1}});
         c.backward();
         optimizer.step();
         return c.values();
       }},
      {"StepLR::StepLR", "wwwww",
       [](Case& c) {
         optim::StepLR schedule(c.optimizer(), {.step_size = 1});
         schedule.step();
         c.backward();
         c.optimizer().step();
         return c.values();
       }},
      {"GradScaler::step", "wwwwr",
       [](Case& c) {
         optim::GradScaler scaler({.init_scale = 1024});
         c.backward(&scaler);
         scaler.step(c.optimizer());
         scaler.update();
         return c.values();
       }},
      {"GradScaler::unscale_", "wwwwr",
       [](Case& c) {
         optim::GradScaler scaler({.init_scale = 1024});
         c.backward(&scaler);
         scaler.unscale_(c.optimizer());
         nn::clip_grad_value_(c.parameters(), 0.01);
         scaler.step(c.optimizer());
         return c.values();
       }},
      {"update_bn", "wwwww",
       [](Case& c) {
         optim::update_bn(std::vector<int>{1}, c.model(), [&](int) { c.backward(); });
         return c.values();
       }},
      {"register_parametrization", "rrrrw",
       [](Case& c) {
         struct Twice : nn::Parametrization {
           Tensor compute(const std::vector<Tensor>& originals) override { return originals[0] * 2; }
         };
         for (const auto& [path, layer] : c.layers())
           nn::register_parametrization(*layer, "weight", std::make_shared<Twice>());
         return numbers(c.backward());
       }},
      {"weight_norm", "rrrrw",
       [](Case& c) {
         for (const auto& [path, layer] : c.layers()) nn::weight_norm(*layer);
         return numbers(c.backward());
       }},
      {"spectral_norm", "rrrrw",
       [](Case& c) {
         const Seeded seeded;
         for (const auto& [path, layer] : c.layers())
           nn::spectral_norm(*layer, "weight", {.n_power_iterations = 20});
         c.backward();
         return Values{};
       }},
      {"remove_parametrizations", "rrrrw",
       [](Case& c) {
         for (const auto& [path, layer] : c.layers()) nn::remove_parametrizations(*layer);
         c.backward();
         return c.values();
       },
       [](nn::Module& net) {
         auto& both = dynamic_cast<Net&>(net);
         nn::weight_norm(both.first.fc), nn::weight_norm(both.last.fc);
       }},
      {"is_parametrized", "wwwww",
       [](Case& c) { return numbers(nn::is_parametrized(*c.layers()[0].second)); }},
      {"replicate", "rrr-r",
       [](Case& c) {
         nn::Module& model = c.model();
         replicate(model, std::vector{Device("cpu:0"), Device("cpu:1")});
         return numbers(c.backward());
       }},
      {"unreplicate", "wrw-w",
       [](Case& c) {
         unreplicate(c.model());
         c.backward();
         c.optimizer().step();
         return c.values();
       }},
      {"DataParallel::DataParallel", "rrrrr",
       [](Case& c) {
         DataParallel dp(c.net(), {Device("cpu:0"), Device("cpu:1")});
         c.backward();
         return Values{};
       }},
      {"ShardedDataParallel::ShardedDataParallel", "rrrrr",
       [](Case& c) {
         ShardedDataParallel sharded(c.net(), {Device("cpu:0"), Device("cpu:1")});
         if (c.mode() != Mode::single) c.backward();
         return Values{};
       }},
      {"DistributedDataParallel::DistributedDataParallel", "r-r--",
       [](Case& c) {
         if (c.mode() == Mode::single) return Values{};
         DistributedDataParallel ddp(c.net(), {.process_group = c.group()});
         return Values{};
       }},
      {"fully_shard", "r-r--",
       [](Case& c) {
         if (c.mode() == Mode::single) return Values{};
         fully_shard(c.net(), {.group = c.group()});
         return Values{};
       }},
      {"ZeroRedundancyOptimizer::ZeroRedundancyOptimizer", "r-w--",
       [](Case& c) {
         if (c.mode() == Mode::single) return Values{};
         ZeroRedundancyOptimizer<optim::SGD> optimizer(c.parameters(), {.process_group = c.group()},
                                                       {.lr = 0.1});
         return Values{};
       }},
  };
}

}  // namespace tapestry::test::divided
