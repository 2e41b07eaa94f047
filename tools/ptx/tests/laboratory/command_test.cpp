// tapestry-ptx run: its options, the programs that it refuses, its exit status, its reports and tables.
#include "tapestry/tools/ptx/tests/laboratory/command.h"
#include "tapestry/tools/ptx/counter_table.h"
#include "tapestry/tools/ptx/laboratory/program_file.h"
#include "tapestry/tools/ptx/laboratory/report.h"
#include "tapestry/tools/ptx/tests/catch.h"

using namespace tapestry::ptx;

TEST_CASE("options that are wrong, and programs that are not there, end with status 64") {
  for (const auto& [arguments, words] : std::vector<std::pair<std::string, std::string>>{
           {"run", "there is no program"},
           {"run --no-such-option ./sum", "unknown option --no-such-option"},
           {"run --seed", "--seed needs a value"},
           {"run --seed x ./sum", "--seed must be a number"},
           {"run --check=races,spelling ./sum", "--check must be all, none"},
           {"run --allow= ./sum", "--allow must be a list"},
           {"run --schedule backwards ./sum", "--schedule must be order or random"},
           {"run ./no_such_program", "cannot run ./no_such_program"}}) {
    const CommandResult found = tapestry_ptx(arguments);
    INFO(found.output);
    CHECK(found.status == 64);
    CHECK_THAT(found.output, ContainsSubstring(words));
  }
  CHECK(tapestry_ptx("run --help").status == 0);
}

TEST_CASE("a program's output, arguments and exit status pass through") {
  CHECK(tapestry_ptx("run -- sh -c 'echo $0 $1; exit 5' a b").output == "a b\n========= no errors\n");
  CHECK(tapestry_ptx("run -- sh -c 'exit 5'").status == 5);
  CHECK(tapestry_ptx("run -- sh -c 'kill -9 $$'").status == 128 + 9);
  CHECK_THAT(tapestry_ptx("run --schedule random --seed 3 --approximate low ./sum").output,
             ContainsSubstring("the sum is 1000"));
  CHECK_THAT(tapestry_ptx("run --limit 100 ./sum").output, ContainsSubstring("limit: a loop without end"));
  CHECK_THAT(tapestry_ptx("run --devices 0 ./sum").output, ContainsSubstring("CUDA says"));
}

TEST_CASE("a trace shows what one thread executes") {
  const std::string text = tapestry_ptx("run --trace 'sum:0:(3,0,0)' ./sum").output;
  CHECK_THAT(text, ContainsSubstring("[trace] sum.cu:9  mov.u32 %r"));
  CHECK_THAT(text, ContainsSubstring("%tid.x;   = 0x3, 0x3"));
  CHECK_THAT(text, ContainsSubstring("bar.sync"));
  CHECK_THAT(text, ContainsSubstring("the sum is 1000"));
  CHECK_THAT(tapestry_ptx("run --trace other:0:3 ./sum").output, !ContainsSubstring("[trace]"));
  CHECK_THAT(tapestry_ptx("run --trace sum:0 ./sum").output, ContainsSubstring("names no thread"));
}

TEST_CASE("programs that the machine cannot run are refused with the options that build them") {
  CHECK(why_not(".", {}, "libcudart.so.13").empty());
  CHECK_FALSE(read_program_file("/etc/hostname").is_elf);

  const std::string planted = std::string(TAPESTRY_LABORATORY) + "/planted";
  const ProgramFile file = read_program_file(planted);
  CHECK(file.is_elf);
  CHECK(file.is_dynamic);
  CHECK(file.ptx == 7);
  CHECK(file.compressed_ptx == 0);
  CHECK(ptx_texts(planted).size() == 7);
  CHECK(why_not(planted, {}, "libcudart.so.13").empty());
  CHECK_THAT(why_not(planted, {}, "libcudart.so.99"), ContainsSubstring("stands in for libcudart.so.99"));
  CHECK_THAT(why_not(TAPESTRY_STATIC_PROGRAM, {}, "libcudart.so.13"), ContainsSubstring("-cudart shared"));
  CHECK_THAT(why_not(TAPESTRY_COMPRESSED_PROGRAM, {}, "libcudart.so.13"), ContainsSubstring("--no-compress"));
  CHECK_THAT(why_not(TAPESTRY_SASS_PROGRAM, {}, "libcudart.so.13"), ContainsSubstring("there is no PTX"));
}

TEST_CASE("errors become reports with the name of a check") {
  Reports reports;
  CHECK(reports.summary() == "no errors");
  const std::string error =
      "[ptx] error: k: [ptx] kernel '_Z1kPfi', k.cu:7 (ld.global.f32), block (0, 0, 0), thread (1, 0, 0): "
      "reads 4 bytes "
      "of global memory at 0x10: 0 bytes beyond the end of an allocation of 4 bytes at 0xc";
  const std::string text = reports.add(error);
  CHECK_THAT(text, ContainsSubstring("========= memcheck: out of bounds\n"));
  CHECK_THAT(text, ContainsSubstring("kernel 'k(float*, int)', k.cu:7"));
  CHECK_THAT(text, ContainsSubstring("What to do: compare the index"));
  CHECK(reports.add(error).empty());
  reports.add("[ptx] leaked: 4 bytes of memory on GPU 0");
  CHECK(reports.count() == 3);
  CHECK(reports.summary() == "3 errors: leakcheck 1, memcheck 2");
  CHECK(check_of("something else").name == "apicheck: invalid call");
}

TEST_CASE("the name of a check does not depend on the names of the program, its files and its kernels") {
  const std::string
      bounds =
          ", block (0, 0, 0), thread (1, 0, 0): reads 4 bytes of global memory at 0x10: 0 bytes beyond "
          "the end of an allocation of 4 bytes at 0xc\nhost: ./mbarrier+0x1234",
      program = "[ptx] error: wgmma: [ptx] kernel 'wgmma', mbarrier.cu:7 (wgmma.mma_async.sync)";
  CHECK(check_of(program + bounds).name == "memcheck: out of bounds");
  CHECK(check_of("[ptx] leaked: 4 bytes of memory on GPU 0\nhost: ./wgmma+0x1234").name ==
        "leakcheck: not released");
  CHECK(check_of("[ptx] kernel 'k', k.cu:7 (trap), block (0, 0, 0), thread (0, 0, 0): the assertion 'is not "
                 "aligned' of "
                 "k.cu:7 failed")
            .name == "assert: a device-side assertion failed");
  REQUIRE(shell("cp cases mbarrier_wgmma").status == 0);
  // Leaks are looked for on request.
  CHECK(tapestry_ptx("run --check ./mbarrier_wgmma leaks").output == "========= no errors\n");
  const std::string leaks = tapestry_ptx("run --check=all ./mbarrier_wgmma leaks").output;
  CHECK_THAT(leaks,
             ContainsSubstring("leakcheck: not released") && ContainsSubstring("1 error: leakcheck 1"));
}

TEST_CASE("a failed assertion of a kernel is cudaErrorAssert") {
  const CommandResult found = tapestry_ptx("run ./cases assert");
  CHECK(found.status == 70);
  CHECK_THAT(found.output, ContainsSubstring("error 710\n") &&
                               ContainsSubstring("assert: a device-side assertion failed") &&
                               ContainsSubstring("cases.cu:8"));
}

TEST_CASE("a run goes on after a race, and reports can be allowed by their kernel or line") {
  const auto run = [](const std::string& options) {
    return tapestry_ptx("run --check " + options + " ./cases races");
  };
  const CommandResult all = run("");
  CHECK(all.status == 70);
  CHECK_THAT(all.output,
             ContainsSubstring("error 0\n") && ContainsSubstring("kernel 'lost_in_first(int*)'") &&
                 ContainsSubstring("kernel 'lost_in_second(int*)'") && ContainsSubstring("cases.cu:11"));
  // Each pair of lines is reported once, however often the kernel is launched.
  const auto times = [](const std::string& text, const std::string& words) {
    int count = 0;
    for (std::size_t at = text.find(words); at != text.npos; at = text.find(words, at + 1)) ++count;
    return count;
  };
  CHECK(times(all.output, "lost_in_first") == times(all.output, "lost_in_second"));
  const CommandResult first = run("--allow lost_in_first");
  CHECK(first.status == 70);
  CHECK_THAT(first.output, !ContainsSubstring("lost_in_first") && ContainsSubstring("lost_in_second"));
  CHECK_THAT(run("--allow=cases.cu:11").output, !ContainsSubstring("lost_in_second"));
  CHECK_THAT(run("--allow=cases.cu:1").output, ContainsSubstring("cases.cu:11"));
  const CommandResult none = run("--allow=lost_in_first --allow cases.cu:11");
  CHECK(none.output == "error 0\n========= no errors\n");
  CHECK(none.status == 0);
}

TEST_CASE("counters survive their file, and the table names what wastes most") {
  KernelRow row;
  row.kernel = "_Z4copyPKfPf";
  row.block = 256;
  row.registers = 16;
  row.counters.launches = 1;
  row.counters.blocks = 4;
  row.counters.threads = 1024;
  row.counters.warp_instructions = 320;
  row.counters.active_lanes = 320 * 32;
  row.counters.loads = {32, 128, 4096};
  row.counters.stores = {32, 1024, 4096};
  row.counters.shared_loads.worst = 32;
  row.counters.unique_read = row.counters.unique_written = 4096;
  row.counters.unique_sectors = 256;
  row.counters.places.push_back({"copy.cu:3 (st.global.f32)", {32, 1024, 4096}, {}});
  const std::vector<KernelRow> again = rows_from_text(to_text({row}));
  REQUIRE(again.size() == 1);
  CHECK(to_text(again) == to_text({row}));
  CHECK(again[0].counters.stores.sectors == 1024);
  const std::string text = table({row});
  CHECK_THAT(text, ContainsSubstring("32.0 sectors a request, and 4.0 would hold its 128 bytes"));
  CHECK(short_name("_ZN12_GLOBAL__N_14copyIfEEvPKT_PS1_") == "copy");
  CHECK(short_name("plain") == "plain");
}
