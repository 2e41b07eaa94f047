// What every public function of nn that takes parameters, modules or their state does with a model that is
// divided: the same as with a model in one process, or a refusal that names the function and what to call.
// The functions are read from the headers, so a new one needs a row in every_function_rows.cpp, or its name
// in kWithoutRow.
#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/data_parallel/divided_net.h"
#include "tests/data_parallel/header_functions.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::test;
using namespace tapestry::test::divided;

namespace {

// Texts that say what to call instead.
const std::vector<std::string> kInstead = {"before",
                                           "unshard",
                                           "destroy the DataParallel",
                                           "destroy that one first",
                                           "pass ",
                                           "call ",
                                           "use ",
                                           "set ",
                                           "merge into",
                                           "train ",
                                           "save ",
                                           "wrap the model again",
                                           "shard the bare model",
                                           "shard each module once",
                                           "choose stage 1",
                                           "shard a model or",
                                           "construct a new Pipeline",
                                           "remove the adapters"};
// A refusal names the function, what it calls, or the object that refuses the changed model.
const std::vector<std::string> kObjects = {
    "fully_shard", "ShardedDataParallel",    "DistributedDataParallel", "DataParallel",
    "Pipeline",    "ZeroRedundancyOptimizer"};
const std::map<std::string, std::string> kCalls = {{"save_language_model", "hf_sources"},
                                                   {"save_language_model_gguf", "hf_sources"},
                                                   {"weight_norm", "register_parametrization"},
                                                   {"spectral_norm", "register_parametrization"},
                                                   {"save_lora", "lora_state_dict"},
                                                   {"load_lora_state_dict", "lora_state_dict"},
                                                   {"load_lora", "add_lora"}};

// The other functions, and why they have no row.
const std::map<std::string, std::string> kWithoutRow = {
    {"They register or find modules, slots and hooks, or describe them without their values",
     "Module::Module Module::forward Module::parameters Module::named_parameters Module::buffers "
     "Module::named_buffers Module::children Module::named_children Module::modules Module::named_modules "
     "Module::named_state Module::at Module::apply Module::path Module::root Module::type_name "
     "Module::options_text Module::why_not_divided Module::str "
     "Module::train Module::eval Module::is_training Module::register_forward_pre_hook "
     "Module::register_forward_hook Module::register_forward_scope Module::add Module::param Module::buffer "
     "Module::has_hooks Module::enter_scopes Module::computed_parameters Module::run_pre_hooks "
     "Module::run_hooks Module::add_place ParameterList::append ParameterDict::insert TensorSlot::is_same "
     "ComputedTensors::ComputedTensors packed_weights"},
    {"They use an optimizer's options, or numbers of their own",
     "Optimizer::Optimizer Optimizer::name Optimizer::supports_device_scaling Optimizer::num_groups "
     "Optimizer::params Optimizer::steps Optimizer::describe Optimizer::parameters Optimizer::lr "
     "Optimizer::set_lr Optimizer::option "
     "Optimizer::set_option Optimizer::has_option Optimizer::set_grad_scale "
     "CosineAnnealingLR::CosineAnnealingLR CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts "
     "OneCycleLR::OneCycleLR CyclicLR::CyclicLR LambdaLR::LambdaLR MultiStepLR::MultiStepLR "
     "ExponentialLR::ExponentialLR LinearLR::LinearLR ConstantLR::ConstantLR PolynomialLR::PolynomialLR "
     "ReduceLROnPlateau::ReduceLROnPlateau ReduceLROnPlateau::load_state_dict Scheduler::load_state_dict "
     "SequentialLR::SequentialLR SequentialLR::load_state_dict GradScaler::GradScaler GradScaler::scale "
     "GradScaler::update GradScaler::get_scale GradScaler::found_inf GradScaler::is_enabled "
     "GradScaler::options GradScaler::state_dict GradScaler::load_state_dict AveragedModel::n_averaged"},
    {"They take tensors, not a model",
     "init::gain save_tensors weight_sources find StateDictIndex::StateDictIndex"},
    {"They belong to one mode",
     "apply check_ranks check_replicas Pipeline::Pipeline Pipeline::load_state_dict Stage::Stage "
     "convert_sync_batchnorm "
     "ShardedDataParallelBase::whole_state_dict ZeroBase::load_state_dict"},
    {"They choose a mode, and call its functions", "Strategy::wrap make_optimizer"},
    {"They divide layers, sequences or experts among ranks, and have tests of their own",
     "tensor_parallel tensor_plan place_parameters context_parallel expert_parallel "
     "update_router_bias has_router_bias"},
    {"State dicts and checkpoints have tests of their own",
     "ShardedTraining::ShardedTraining save_sharded load_sharded save_model load_model save_checkpoint "
     "load_checkpoint Checkpointer::save Checkpointer::resume "
     "Optimizer::state_dict Optimizer::local_state_dict Optimizer::state_tensors LBFGS::load_state_dict "
     "AveragedModel::state_dict find_lr"},
};

struct Outcome {
  Values values;
  std::string error;
};
Outcome outcome_of(const Row& row, Mode mode, const Group& group) {
  try {
    Case c(mode, group, row.before);
    return {row.run(c), ""};
  } catch (const std::exception& e) {
    return {{}, e.what()};
  }
}

}  // namespace

TEST_CASE("every function that takes parameters, modules or state has a row") {
  std::set<std::string> rows, expected;
  for (const auto& [why, names] : kWithoutRow) {
    std::istringstream in(names);
    for (std::string name; in >> name;) expected.insert(name);
  }
  const std::size_t without = expected.size();
  for (const Row& row : rows_of_functions()) rows.insert(row.function);
  expected.insert(rows.begin(), rows.end());
  CHECK(expected.size() == rows.size() + without);
  CHECK(functions_of_headers() == expected);

  std::set<std::string> found;
  add_functions(
      "namespace a {\ntemplate <class T>\nclass B : public C {\n public:\n  B(Module& m, int (*f)(int)) : "
      "m_(m) {}\n"
      "  void f(const StateDict& d);\n private:\n  void g(const StateDict& d);\n};\n"
      "int h(int n) {\n  return k(Module());\n}\nvoid l(\n  Optimizer& o);\nnamespace detail {\nvoid "
      "m(Module&);\n}\n}",
      found);
  CHECK(found == std::set<std::string>{"B::B", "B::f", "l"});
}

TEST_CASE("every function works with a divided model, or refuses it by name") {
  for (const Row& row : rows_of_functions()) {
    const Outcome single = outcome_of(row, Mode::single, nullptr);
    INFO(row.function);
    CHECK(single.error == "");
    REQUIRE(row.verdicts.size() == 5);
    for (int m = 1; m <= 5; ++m) {
      const Mode mode = static_cast<Mode>(m);
      const char verdict = row.verdicts[static_cast<std::size_t>(m) - 1];
      if (verdict == '-') continue;
      std::vector<Outcome> outcomes(1);
      if (mode == Mode::sharded_data_parallel || mode == Mode::data_parallel) {
        outcomes[0] = outcome_of(row, mode, nullptr);
      } else {
        outcomes.resize(2);
        run_local_ranks(2,
                        [&](const Group& group) {
                          outcomes[static_cast<std::size_t>(group->rank())] = outcome_of(row, mode, group);
                        },
                        {.timeout = std::chrono::milliseconds(4000)});
      }
      Values joined;
      for (const Outcome& o : outcomes) {
        INFO(kModes[m] << ": " << o.error);
        const std::string name = row.function.substr(row.function.rfind(':') + 1);
        CHECK((o.error.empty() ? 'w' : 'r') == verdict);
        if (verdict == 'r' && !o.error.empty()) {
          std::vector<std::string> names = kObjects;
          names.push_back(name);
          if (kCalls.contains(name)) names.push_back(kCalls.at(name));
          names.push_back(row.function.substr(0, row.function.find(':')));
          CHECK(std::any_of(names.begin(), names.end(), [&](const std::string& n) {
            return o.error.find("[" + n + "]") != std::string::npos ||
                   o.error.find(n + " with") != std::string::npos;
          }));

          CHECK(std::any_of(kInstead.begin(), kInstead.end(), [&](const std::string& text) {
            return o.error.find(text) != std::string::npos;
          }));
        }
        joined.insert(o.values.begin(), o.values.end());
      }
      if (verdict == 'w') {
        std::string names;
        for (const auto& [name, value] : joined)
          if (!single.values.contains(name)) names += " " + name;
        INFO(kModes[m] << names);
        CHECK(distance(joined, single.values) < 1e-12);
      }
    }
  }
}

TEST_CASE("an Embedding with max_norm is refused where ranks or devices would scale down other rows") {
  const auto text = [](const std::function<void(nn::Module&)>& divide) -> std::string {
    struct Words : nn::Module {
      nn::Embedding& rows =
          add<nn::Embedding>("rows", {.num_embeddings = 4, .embedding_dim = 2, .max_norm = 0.5});
      Tensor forward(const Tensor& x) override { return rows(x); }
    } words;
    try {
      divide(words);
    } catch (const ValueError& e) {
      CHECK(words.rows.weight.replicas() == 1);
      CHECK(words.rows.weight.layout() == nullptr);
      return e.what();
    }
    return "";
  };
  const auto on_two_ranks = [&](const std::function<void(nn::Module&, const Group&)>& divide) {
    return distributed_test::on_ranks<std::string>(
        2, [&](const Group& group) { return text([&](nn::Module& words) { divide(words, group); }); })[0];
  };
  const std::string why = "rows has max_norm 0.5, and each rank or replica would scale down the rows";
  const DeviceList devices({Device("cpu:0"), Device("cpu:1")});
  CHECK_THAT(on_two_ranks([](nn::Module& m, const Group& group) { fully_shard(m, {.group = group}); }),
             ContainsSubstring("[fully_shard] " + why));
  CHECK_THAT(on_two_ranks([](nn::Module& m, const Group& group) {
               DistributedDataParallel ddp(m, {.process_group = group});
             }),
             ContainsSubstring("[DistributedDataParallel] " + why));
  CHECK_THAT(text([&](nn::Module& m) { DataParallel dp(m, devices); }),
             ContainsSubstring("[DataParallel] " + why));
  CHECK_THAT(text([&](nn::Module& m) { ShardedDataParallel sharded(m, devices); }),
             ContainsSubstring("[ShardedDataParallel] " + why));
  CHECK(text([&](nn::Module& m) { DataParallel dp(m, {Device("cpu:0")}); }).empty());

  struct Functional : nn::Module {
    nn::Parameter& weight = param("weight", ones({4, 2}));
    Tensor forward(const Tensor& x) override {
      return embedding(weight, x, EmbeddingParams{.max_norm = 0.5});
    }
  };
  const std::string inside =
      distributed_test::on_ranks<std::string>(2, [&](const Group& group) -> std::string {
        Functional net;
        fully_shard(net, {.group = group});
        try {
          net(zeros({1}, {DType::i64, kCPU}));
        } catch (const ValueError& e) {
          return e.what();
        }
        return "";
      })[0];
  CHECK_THAT(inside, ContainsSubstring("[embedding] max_norm 0.5 would scale down the rows"));
}

TEST_CASE("on one rank, a sharded Embedding keeps the rows that max_norm scales down") {
  // Three steps, of which each looks up other rows, and the whole weight. `divide` returns what keeps the
  // model divided.
  const auto train = [](const std::function<std::shared_ptr<void>(nn::Embedding&)>& divide) {
    nn::Embedding rows({.num_embeddings = 5, .embedding_dim = 2, .max_norm = 0.5});
    rows.to(DType::f64);
    fill_by_formula(rows);
    const auto divided = divide(rows);
    optim::SGD optimizer(rows.parameters(), {.lr = 0.1});
    std::vector<double> numbers;
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const Tensor loss = rows(tensor({step, step + 1})).square().sum();
      loss.backward();
      optimizer.step();
      numbers.push_back(loss.item());
    }
    for (const double x : rows.state_dict().at(0).second.to_vector<double>()) numbers.push_back(x);
    return numbers;
  };
  const auto single = train([](nn::Embedding&) { return nullptr; });
  CHECK(distributed_test::on_ranks<std::vector<double>>(1, [&](const Group& group) {
          return train([&](nn::Embedding& rows) {
            fully_shard(rows, {.group = group});
            return nullptr;
          });
        })[0] == single);
  CHECK(train([](nn::Embedding& rows) {
          return std::make_shared<ShardedDataParallel<nn::Embedding>>(rows, DeviceList({Device("cpu:0")}));
        }) == single);
}
