# The base: the part of the library that apps/classifier and tapestry-run need. It is an object library of its own, with which
# these programs are linked directly, so that building them compiles nothing else. The shared library contains all files.
#
# These files are not in the base: language models, linear algebra, operations and layers of special use, pipelines, the planner
# and some formats of data. All others are. A program that the base is too small for fails to link.
set(outside
  "(autograd/ops|kernels/cpu|kernels/cuda(/hopper|/vendor)?)/(cudnn_)?(attention|ctc|distance|embedding|fold|fused_norm|grid_sample|grouped_mm|index_mask|index_put|linalg|linear_cross_entropy|multinomial|norm_group|norm_layer|packed_linear|pool_nd|product|rearrange|recurrent|reduce_composed|resample|rope|scan|search|sort|swiglu|view_dims|view_in_place|view_split)[^/]*"
  "autograd/(functional|gradcheck)"
  "core/(dlpack|gguf|packed_tensor|profiler|safetensors_shards|trace)[^/]*"
  "data/(text|tokenizer)/.*"
  "data/(color|iterable|mix|resize|rotation)"
  "data/formats/(image|internal/(jpeg|png)|npy|npz|text)[^/]*"
  "distributed/(context|expert|pipeline|placement|planner|tensor)/.*"
  "distributed/(checkpoint/internal/(convert|program)|comm/(fake_group|run_local)|common/(ddp_report|internal/cut_parameter|trace)|launch/child_processes)"
  "distributed/fsdp/(internal/sharded_replicas|sharded_data_parallel|devices_row)"
  "kernels/cpu/(matmul_amx|matmul_packed|matmul_tile_wide|optim_rules)[^/]*"
  "nn/models/.*"
  "nn/layers/(attention|bilinear|embedding|fold|fused_norm|glu|loss|moe|norm|packed|pool|recurrent|rope|shape|transformer|upsample)"
  "nn/optim/(adaptive|lbfgs|lr_finder|muon|plateau|sequential)"
  "nn/(convert_parameters|distributions|functional|init_matrices|losses|parametrize|internal/name_pattern|utils/rnn)")
if(NOT TAPESTRY_CUDA_FOUND)
  list(APPEND outside "kernels/cuda/.*")  # libraries of NVIDIA's, which only tests call without a GPU
endif()

# tapestry_base_of(RESULT FILE...): sets RESULT to those of the library's files that are in the base.
function(tapestry_base_of result)
  set(base "")
  foreach(file ${ARGN})
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${file})
    set(inside TRUE)
    foreach(pattern ${outside})
      if(path MATCHES "^${pattern}\\.(cpp|cu)$")
        set(inside FALSE)
        break()
      endif()
    endforeach()
    if(inside)
      list(APPEND base ${file})
    endif()
  endforeach()
  set(${result} ${base} PARENT_SCOPE)
endfunction()

# tapestry_sources(TARGET FILE...): adds files of the library to a target, with the options that each needs.
function(tapestry_sources target)
  set(all ${ARGN})
  if(TAPESTRY_UNITY)
    set(cuda_sources ${all})
    list(FILTER cuda_sources INCLUDE REGEX "\\.cu$")
    list(FILTER all EXCLUDE REGEX "\\.cu$")
    tapestry_batches(cuda_batches ${cuda_sources})
    tapestry_unity(${target} all)
    list(APPEND all ${cuda_batches})
  endif()
  target_sources(${target} PRIVATE ${all})
  tapestry_optimization(${target} ${all})
  tapestry_processors(${target} ${all})
  # The units of TAPESTRY_UNITY leave out arithmetic, which CMake's would not.
  set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
  target_include_directories(${target} PRIVATE ${PROJECT_BINARY_DIR}/include)
  target_link_libraries(${target} PRIVATE tapestry_private tapestry_warnings)
  target_compile_definitions(${target} PRIVATE TAPESTRY_VERSION="${PROJECT_VERSION}")
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-fno-semantic-interposition>")
  # Hot thread-local variables use the initial-exec model (core/tls_model.h), which needs static TLS for all thread-local
  # variables of the library. A static CUDA runtime would add 4 KiB to them, more than programs have left for dlopen().
  if(NOT TAPESTRY_CUDA_FOUND OR CMAKE_CUDA_RUNTIME_LIBRARY STREQUAL "Shared")
    target_compile_definitions(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:TAPESTRY_INITIAL_EXEC>")
  endif()
  if(TAPESTRY_UNITY)
    tapestry_precompile(${target})
  endif()
endfunction()

# tapestry_link_base(TARGET): links a program or the library with the base's object files. Without TAPESTRY_LINK_BASE, a program is
# linked with the library, so that the kernels are in one file. If the build makes two libraries, for different processors, it is
# too, so that the dynamic linker chooses between them.
function(tapestry_link_base target)
  if((TAPESTRY_CPU_ARCH STREQUAL "any" OR NOT TAPESTRY_LINK_BASE) AND NOT target STREQUAL "tapestry")
    target_link_libraries(${target} PRIVATE tapestry)
    return()
  endif()
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:tapestry_base>)
  if(TARGET tapestry_hopper)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:tapestry_hopper>)
  endif()
  target_link_libraries(${target} PRIVATE tapestry_private)
endfunction()
