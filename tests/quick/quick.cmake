# tools/test --quick: one program with a few test files of other folders, chosen so that they are soon compiled and
# show that this machine works: tensors, values of CPU kernels, golden values and gradients, communication. quick.training
# trains a small network with one process and, with Gloo, with two. The tests are called quick.<file>, and have the label quick.
set(quick
  core/dtype_test.cpp core/generator_test.cpp core/half_test.cpp core/safetensors_test.cpp core/shape_test.cpp
  core/tensor_test.cpp core/threads_test.cpp
  kernels/conv_test.cpp kernels/convert_test.cpp kernels/matmul_bf16_test.cpp kernels/matmul_test.cpp
  kernels/pointwise_test.cpp kernels/pool_avg_test.cpp
  autograd/arithmetic_test.cpp autograd/attention_test.cpp autograd/conv_test.cpp autograd/elementary_test.cpp
  autograd/embedding_test.cpp autograd/loss_test.cpp autograd/matmul_test.cpp autograd/norm_test.cpp
  autograd/pool_test.cpp autograd/reduce_test.cpp autograd/softmax_test.cpp autograd/view_test.cpp
  distributed/collectives_test.cpp distributed/ddp_test.cpp distributed/local_backend_test.cpp)
add_executable(tests_quick ${quick} $<TARGET_OBJECTS:tests_support>)
target_link_libraries(tests_quick PRIVATE tests_support)
target_precompile_headers(tests_quick REUSE_FROM tests_support)
add_dependencies(tests_quick classifier tapestry-run)
list(TRANSFORM quick REPLACE ".*/(.*)\\.cpp" "\\1" OUTPUT_VARIABLE stems)
list(REMOVE_DUPLICATES stems)  # -# selects by the name of the file, without its folder
foreach(stem ${stems})
  string(REGEX REPLACE "_test$" "" unit ${stem})
  add_test(NAME quick.${unit} COMMAND tests_quick -\# "[\#${stem}]~[.]" ${fail_without_tests})
  set_tests_properties(quick.${unit} PROPERTIES TIMEOUT ${TAPESTRY_TEST_TIMEOUT} LABELS quick ENVIRONMENT "${environment}")
endforeach()
add_test(NAME quick.training
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/training.sh $<TARGET_FILE_DIR:classifier> $<IF:$<TARGET_EXISTS:gloo>,2,1>)
set_tests_properties(quick.training PROPERTIES TIMEOUT ${TAPESTRY_TEST_TIMEOUT} LABELS quick ENVIRONMENT "${environment}")
