from exlm_command import main

main()
