# tapestry_program(TARGET): installs the program, and makes it a part of the target `programs`, which tools/quickstart --all
# builds. tests/tools/programs_test.sh checks that each program that the documentation calls is one of these.
include(GNUInstallDirs)
# A program finds the library relative to its own folder, so that the install tree can be moved.
file(RELATIVE_PATH TAPESTRY_LIBRARIES_FROM_PROGRAMS ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
if(PROJECT_IS_TOP_LEVEL)
  add_custom_target(programs)
endif()

function(tapestry_program target)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/${TAPESTRY_LIBRARIES_FROM_PROGRAMS}")
  if(TAPESTRY_INSTALL)
    install(TARGETS ${target} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
  set_property(GLOBAL APPEND PROPERTY TAPESTRY_PROGRAMS ${target})
  if(TARGET programs)
    add_dependencies(programs ${target})
  endif()
endfunction()
