#include "tapestry/apps/classifier/job.h"

#include "tapestry/apps/classifier/config.h"
#include "tapestry/distributed/comm/environment.h"
#include "tapestry/distributed/comm/text.h"

namespace apps {

using namespace tapestry;

std::unique_ptr<TrainingJob> join_job(const Options& options) {
  const distributed::Environment environment = distributed::read_environment();
  if ((environment.restart > 0 || environment.max_restarts > 0) && options.resume == Resume::never)
    fail<UsageError>(
        "[classifier] the launcher restarts this job after a failure, and a restart would ",
        options.run_dir.empty() ? "begin again in a new folder" : "refuse the run in " + options.run_dir,
        "; add ", options.run_dir.empty() ? "--run-dir DIR " : "",
        "--resume auto, or start the job without restarts");
  const bool compresses = options.compress != Options().compress || options.given.contains("compress");
  auto job =
      std::make_unique<TrainingJob>(JobOptions{.command = "classifier",
                                               .parallel = options.parallel,
                                               .compress = compresses ? options.compress : std::string(),
                                               .device = options.device,
                                               .restartable = true,
                                               .live = options.live});
  if (job->size() == 1) return job;
  const std::string resumes = options.saved ? "resume" : "start";
  const std::string first_resumes = distributed::broadcast_text(*job->group(), resumes, 0, "resume");
  const std::string first_options =
      distributed::broadcast_text(*job->group(), to_json(options), 0, "options");
  distributed::on_all_ranks(*job->group(), "classifier", [&] {
    if (resumes != first_resumes)
      fail<UsageError>("[classifier] rank 0 would ", first_resumes, " a run in ", options.run_dir,
                       " and rank ", job->rank(), " would ", resumes,
                       " one; choose a --run-dir that all ranks can see");
    check_same_as_rank_0(options, options_from_json(first_options, "the options of rank 0"));
  });
  return job;
}

}  // namespace apps
