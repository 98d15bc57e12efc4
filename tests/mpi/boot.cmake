# SPDX-License-Identifier: Apache-2.0
add_executable(t_mpi_boot boot.c)
target_include_directories(t_mpi_boot PRIVATE ${PROJECT_SOURCE_DIR}/runtime)
target_link_libraries(t_mpi_boot PRIVATE tt_test MPI::MPI_C)
set_target_properties(t_mpi_boot PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)

# boot_mode(MODE np...): the mode runs well with so many ranks.
function(boot_mode mode)
    foreach(np ${ARGN})
        tutti_check(NAME mpi.boot.${mode}.np${np} PROCESSORS ${np}
            COMMAND ${TT_MPIRUN} ${TT_MPIRUN_FLAGS} -np ${np} $<TARGET_FILE:t_mpi_boot> ${mode})
    endforeach()
endfunction()
# boot_end(MODE np STATUS TEXT): the job ends with the status, and says so. Its ranks sleep most of the time.
function(boot_end mode np status text)
    tutti_check(NAME mpi.boot.${mode}.np${np} SLEEPS
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/ends_with.sh ${status} ${text}
            ${TT_MPIRUN} ${TT_MPIRUN_FLAGS} -np ${np} $<TARGET_FILE:t_mpi_boot> ${mode})
endfunction()

boot_mode(healthy 1 2 4)
boot_mode(reversed 1 4)
boot_mode(funneled 1 2 4)
boot_mode(failure 2 4)
boot_mode(failure_funneled 3)
boot_mode(environment 1 3)
boot_mode(whole 1 4)
boot_mode(recover 3)
boot_end(absent 3 42 "tutti_init: rank 2 has not arrived after 5")
boot_end(stuck 3 42 "as expected")
boot_end(late 2 1 "MPI_Init has not returned: some rank of the job has not called it")
boot_end(give_up 3 5 "gave up")
boot_end(exit 2 1 "exit() before tutti_finalize")
boot_end(abort 3 7 "no more coffee")
tutti_check(NAME mpi.boot.lone COMMAND $<TARGET_FILE:t_mpi_boot> lone ENV PMI_SIZE=4)
tutti_check(NAME mpi.boot.big.np2 PROCESSORS 2 LABELS long
    COMMAND ${TT_MPIRUN} ${TT_MPIRUN_FLAGS} -np 2 $<TARGET_FILE:t_mpi_boot> big)
